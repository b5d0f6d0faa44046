"""Handle SIGBUS: replace lost pages of a mapped file by zeros and set a flag, instead of ending the process.

Reading a mapped page that the file no longer has (it was truncated, or the disk or file server failed) raises SIGBUS,
which ends the process without a message. Copying with `pread` would avoid the signal, but takes twice as long as
reading in place. So files stay mapped and the signal is handled, as in journald: the handler maps zeros over the rest
of the file and flags the mapping, and code that summed these bytes checks the flag afterwards. A SIGBUS at any other
address is passed to the previous handler.

The handler runs in a thread that may hold any lock, so it cannot be Python: it is about twenty instructions, compiled
by the library that compiles the kernel. It is installed only while files are mapped, and only on Linux: Windows does
not allow a mapped file to shrink; on macOS, a truncated file still ends the process.
"""

import ctypes
import mmap
import signal
import sys
import threading
import weakref
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_MAPPINGS = 1 << 14
IS_SUPPORTED = sys.platform == "linux" and sys.maxsize > 2**32
_PAGE = mmap.PAGESIZE
_START, _STOP, _LOST = range(3)  # columns of the table
_FAULT_ADDRESS = 16  # byte of siginfo_t
_ZEROS = 0x32  # MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS
_WITH_SIGINFO, _ON_STACK = 0x4, 0x08000000


class Mapping:
    """A mapping that the handler watches while its memory is mapped."""

    def __init__(self, memory: mmap.mmap, address: int, size: int) -> None:
        self._row = _watch().add(memory, address, size) if IS_SUPPORTED and size else np.zeros(3, np.int64)

    @property
    def is_lost(self) -> bool:
        """Whether a part could not be read and was replaced by zeros."""
        return bool(self._row[_LOST])


class _Action(ctypes.Structure):
    """struct sigaction of glibc and musl on 64-bit systems."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Watch:
    """The table of mappings that the handler reads, and the handler."""

    def __init__(self) -> None:
        self._table: NDArray[np.int64] = np.zeros((MOST_MAPPINGS, 3), np.int64)
        self._free = list(range(MOST_MAPPINGS))[::-1]
        self._lock = threading.RLock()  # reentrant: garbage collection within may free a mapping
        self._libc = ctypes.CDLL(None)
        self._before, self._ours = _Action(), _Action()
        self._engine, address = self._compiled()
        self._ours.handler, self._ours.flags = address, _WITH_SIGINFO | _ON_STACK

    def add(self, memory: mmap.mmap, address: int, size: int) -> NDArray[np.int64]:
        with self._lock:
            if not self._free:
                raise OSError(f"more than {MOST_MAPPINGS} files are mapped; close other open series")
            if len(self._free) == MOST_MAPPINGS:
                self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._ours), ctypes.byref(self._before))
            place = self._free.pop()
            row = self._table[place]
            row[:] = address, -(-(address + size) // _PAGE) * _PAGE, 0
        weakref.finalize(memory, self._remove, place).atexit = False
        return row

    def _remove(self, place: int) -> None:
        with self._lock:
            self._table[place] = 0
            self._free.append(place)
            if len(self._free) == MOST_MAPPINGS:
                now = _Action()
                self._libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
                if now.handler == self._ours.handler:  # otherwise another handler was installed after it
                    self._libc.sigaction(signal.SIGBUS, ctypes.byref(self._before), None)

    def _compiled(self) -> tuple[Any, int]:
        """The engine that keeps the machine code alive, and the address of the handler."""
        from llvmlite import binding, ir

        word, number, nothing = ir.IntType(64), ir.IntType(32), ir.VoidType()
        pointer = word.as_pointer()

        module = ir.Module("bus_errors")
        module.triple = binding.get_default_triple()
        put_zeros = ir.Function(
            module, ir.FunctionType(word, (word, word, number, number, number, word)), "mmap"
        )
        set_action = ir.Function(module, ir.FunctionType(number, (number, word, word)), "sigaction")
        handler = ir.Function(module, ir.FunctionType(nothing, (number, word, word)), "handler")
        entry, loop, inside, zeroed, following, end, foreign, leave = (
            handler.append_basic_block(name)
            for name in ("entry", "loop", "inside", "zeroed", "following", "end", "foreign", "leave")
        )
        code = ir.IRBuilder(entry)
        fault = code.load(code.inttoptr(code.add(handler.args[1], word(_FAULT_ADDRESS)), pointer))
        page = code.and_(fault, word(-_PAGE))
        code.branch(loop)
        code.position_at_end(loop)  # check all rows: if two contain this page, one is about to be removed
        row, found = code.phi(word), code.phi(number)
        row.add_incoming(word(self._table.ctypes.data), entry)
        found.add_incoming(number(0), entry)

        def column(number_: int) -> Any:
            return code.inttoptr(code.add(row, word(8 * number_)), pointer)

        stop = code.load(column(_STOP))
        within = code.and_(
            code.icmp_unsigned("<=", code.load(column(_START)), fault), code.icmp_unsigned("<", fault, stop)
        )
        code.cbranch(within, inside, following)
        code.position_at_end(inside)
        arguments = (page, code.sub(stop, page), number(mmap.PROT_READ), number(_ZEROS), number(-1), word(0))
        placed = code.call(put_zeros, arguments)
        code.cbranch(code.icmp_unsigned("==", placed, page), zeroed, following)
        code.position_at_end(zeroed)
        code.store(word(1), column(_LOST))
        code.branch(following)
        code.position_at_end(following)
        total = code.phi(number)
        total.add_incoming(found, loop)
        total.add_incoming(found, inside)
        total.add_incoming(number(1), zeroed)
        then = code.add(row, word(self._table.strides[0]))
        row.add_incoming(then, following)
        found.add_incoming(total, following)
        behind = word(self._table.ctypes.data + self._table.nbytes)
        code.cbranch(code.icmp_unsigned("<", then, behind), loop, end)
        code.position_at_end(end)
        code.cbranch(code.icmp_unsigned("==", total, number(0)), foreign, leave)
        # Not a watched mapping: the instruction is repeated under the previous handler.
        code.position_at_end(foreign)
        before = word(ctypes.addressof(self._before))
        code.call(set_action, (number(signal.SIGBUS), before, word(0)))
        code.branch(leave)
        code.position_at_end(leave)
        code.ret_void()

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        target = binding.Target.from_default_triple().create_target_machine()
        engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), target)
        engine.finalize_object()
        return engine, engine.get_function_address("handler")


_compiling = threading.Lock()


def _watch() -> _Watch:
    with _compiling:
        return _made()


@lru_cache(maxsize=1)
def _made() -> _Watch:
    return _Watch()
