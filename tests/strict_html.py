"""A parser of HTML that holds elements and text only."""

from html.parser import HTMLParser


class StrictParser(HTMLParser):
    """Refuses comments, declarations and processing instructions."""

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_decl(self, decl):
        raise AssertionError(decl)

    def handle_pi(self, data):
        raise AssertionError(data)

    def unknown_decl(self, data):
        raise AssertionError(data)
