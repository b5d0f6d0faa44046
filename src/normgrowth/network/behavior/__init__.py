"""What a language model predicts as its attention hardens and its weights grow."""
