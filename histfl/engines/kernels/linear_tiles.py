"""Products of many small matrices, compiled by numba around one register tile.

A tile of the result, a few rows by a few vectors, stays in the processor's registers while the summed axis
goes by: with 5 x 5 vectors, 10 loads serve 25 multiply-adds. At a client's sizes (a batch of 50, some
hundred units) that is the machine's full rate, without the packing that a library for large matrices does
first. numba has no vector types, so the tile is written as LLVM instructions, which it then optimises as
part of the loops below. It runs anywhere, but needs the registers of AVX-512 to be fast.

Only to be imported where numba is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from histfl.engines.kernels.compiled import compiled

VECTOR_BYTES = 64
ROWS = VECTORS = 5  # of a tile: 25 of 32 registers, 5 more for a row of vectors and one for their factor

_INT = ir.IntType(64)


class _Vectors:
    """LLVM instructions on vectors of numbers, addressed in numbers from a base."""

    def __init__(self, builder: Any, number: Any) -> None:
        self.builder, self.number = builder, number
        self.bytes = 4 if number == ir.FloatType() else 8
        self.lanes = VECTOR_BYTES // self.bytes
        self.type = ir.VectorType(number, self.lanes)
        self.mask_type = ir.VectorType(ir.IntType(1), self.lanes)
        self.zero = ir.Constant(self.type, [0.0] * self.lanes)
        self.kind = f"v{self.lanes}f{8 * self.bytes}"

    def spread(self, value: Any) -> Any:
        """A vector of one value."""
        vector = ir.VectorType(value.type, self.lanes)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), places)

    def first_lanes(self, count: Any) -> Any:
        """A mask of the first `count` lanes, from the bits of a number: loops hold that in a register."""
        bits = self.builder.sub(self.builder.shl(_INT(1), count), _INT(1))
        return self.builder.bitcast(self.builder.trunc(bits, ir.IntType(self.lanes)), self.mask_type)

    def all_lanes(self) -> Any:
        """A mask of all lanes, with which loads and stores are plain ones."""
        return ir.Constant(self.mask_type, [1] * self.lanes)

    def pointer(self, base: Any, offset: Any, kind: Any) -> Any:
        address = self.builder.add(base, self.builder.mul(offset, _INT(self.bytes)))
        return self.builder.inttoptr(address, kind.as_pointer())

    def load_one(self, base: Any, offset: Any) -> Any:
        return self.builder.load(self.pointer(base, offset, self.number), align=self.bytes)

    def load(self, base: Any, offset: Any, mask: Any) -> Any:
        """Numbers where the mask is set, zeros elsewhere."""
        pointer = self.pointer(base, offset, self.type)
        kinds = [pointer.type, ir.IntType(32), self.mask_type, self.type]
        load = self._intrinsic(f"masked.load.{self.kind}.p0", self.type, kinds)
        return self.builder.call(load, [pointer, ir.IntType(32)(self.bytes), mask, self.zero])

    def store(self, value: Any, base: Any, offset: Any, mask: Any) -> None:
        pointer = self.pointer(base, offset, self.type)
        kinds = [self.type, pointer.type, ir.IntType(32), self.mask_type]
        store = self._intrinsic(f"masked.store.{self.kind}.p0", ir.VoidType(), kinds)
        self.builder.call(store, [value, pointer, ir.IntType(32)(self.bytes), mask])

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        """x * y + z, rounded once where the machine can."""
        product = self.builder.fmul(x, y, flags=("contract",))
        return self.builder.fadd(product, z, flags=("contract",))

    def sums(self, vectors: Sequence[Any]) -> list[Any]:
        """The sum of each vector's lanes. Up to as many vectors as lanes go together: halves of two make one
        vector, quarters of two such ones the next, until a lane is left of each."""
        if len(vectors) > self.lanes:
            return self.sums(vectors[: self.lanes]) + self.sums(vectors[self.lanes :])
        held = [*vectors, *[self.zero] * (self.lanes - len(vectors))]
        part = self.lanes
        while len(held) > 1:
            part //= 2
            lower = [i for i in range(2 * self.lanes) if i // part % 2 == 0]
            held = [
                self.builder.fadd(*(self._mixed(x, y, [i + by for i in lower]) for by in (0, part)))
                for x, y in zip(held[::2], held[1::2], strict=True)
            ]
        return [self.builder.extract_element(held[0], ir.IntType(32)(i)) for i in range(len(vectors))]

    def _mixed(self, x: Any, y: Any, places: Sequence[int]) -> Any:
        kind = ir.VectorType(ir.IntType(32), self.lanes)
        return self.builder.shuffle_vector(x, y, ir.Constant(kind, list(places)))

    def prefetch(self, base: Any, offset: Any) -> None:
        """Have the memory there, to be changed, on its way to the first cache."""
        pointer = self.pointer(base, offset, ir.IntType(8))
        word = ir.IntType(32)
        fetch = self._intrinsic("prefetch.p0", ir.VoidType(), [pointer.type, word, word, word])
        self.builder.call(fetch, [pointer, word(1), word(3), word(1)])

    def _intrinsic(self, name: str, result: Any, kinds: Sequence[Any]) -> Any:
        signature = ir.FunctionType(result, kinds)
        return cgutils.get_or_insert_function(self.builder.module, signature, f"llvm.{name}")


def _summed(builder: Any, count: Any, step: int, sums: Sequence[Any], body: Callable[..., Any]) -> list[Any]:
    """`sums` after body(k, sums) -> sums for k = 0, step, ... below `count`, all of them in registers."""
    before, loop, after = builder.block, *(builder.append_basic_block() for _ in range(2))
    builder.cbranch(builder.icmp_signed(">", count, _INT(0)), loop, after)
    builder.position_at_end(loop)
    k = builder.phi(_INT)
    held = [builder.phi(value.type) for value in sums]
    found = body(k, held)
    following = builder.add(k, _INT(step))
    for phi, start, new in zip((k, *held), (_INT(0), *sums), (following, *found), strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(new, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    ends = [builder.phi(value.type) for value in sums]
    for phi, start, new in zip(ends, sums, found, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(new, loop)
    return ends


def _for_each_size(
    builder: Any, rows: Any, columns: Any, most: tuple[int, int], emit: Callable[..., None]
) -> None:
    """emit(rows, columns) for the tile of that size, 1 x 1 to `most`."""
    end = builder.append_basic_block()
    size = builder.add(builder.mul(rows, _INT(most[1] + 1)), columns)
    switch = builder.switch(size, end)
    for height in range(1, most[0] + 1):
        for width in range(1, most[1] + 1):
            block = builder.append_basic_block()
            switch.add_case(_INT(height * (most[1] + 1) + width), block)
            builder.position_at_end(block)
            emit(height, width)
            builder.branch(end)
    builder.position_at_end(end)


@intrinsic  # type: ignore[untyped-decorator]
def _outer_tile(_: Any, rows, vectors, last, c, c_row, a, a_row, a_k, b, b_k, count, keep, scale):  # type: ignore[no-untyped-def]
    """c[r, j] <- keep * c[r, j] + scale * sum over k of a[r, k] * b[k, j], rows x vectors, of whose last one
    the first `last` lanes are there."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, vectors, last, c, c_row, a, a_row, a_k, b, b_k, count, keep, scale = args
        v = _Vectors(builder, scale.type)
        some = v.first_lanes(last)
        kept = builder.fcmp_unordered("!=", keep, ir.Constant(keep.type, 0.0))
        keep, scale = v.spread(keep), v.spread(scale)

        def emit(height: int, width: int) -> None:
            masks = [v.all_lanes()] * (width - 1) + [some]
            places = [
                (builder.add(builder.mul(c_row, _INT(r)), _INT(j * v.lanes)), masks[j])
                for r in range(height)
                for j in range(width)
            ]
            for place, _ in places:  # they arrive while the sums are taken
                v.prefetch(c, place)

            def body(k: Any, sums: Sequence[Any]) -> list[Any]:
                row = builder.mul(k, b_k)
                right = [v.load(b, builder.add(row, _INT(j * v.lanes)), masks[j]) for j in range(width)]
                found = []
                for r in range(height):
                    place = builder.add(builder.mul(k, a_k), builder.mul(a_row, _INT(r)))
                    left = v.spread(v.load_one(a, place))
                    found += [v.multiply_add(left, right[j], sums[r * width + j]) for j in range(width)]
                return found

            sums = _summed(builder, count, 1, [v.zero] * (height * width), body)
            for (place, mask), value in zip(places, sums, strict=True):
                old = builder.select(kept, v.load(c, place, mask), v.zero)
                v.store(v.multiply_add(scale, value, builder.fmul(keep, old)), c, place, mask)

        _for_each_size(builder, rows, vectors, (ROWS, VECTORS), emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11, scale, scale), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _inner_tile(_: Any, rows, columns, c, c_row, c_column, a, a_row, b, b_row, bias, count, like):  # type: ignore[no-untyped-def]
    """c[r, s] <- bias[s] + sum over k of a[r, k] * b[s, k], rows x columns; `like` is any such number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, columns, c, c_row, c_column, a, a_row, b, b_row, bias, count, like = args
        v = _Vectors(builder, like.type)
        rest = builder.srem(count, _INT(v.lanes))
        whole, some = builder.sub(count, rest), v.first_lanes(rest)

        def emit(height: int, width: int) -> None:
            def add(k: Any, sums: Sequence[Any], mask: Any) -> list[Any]:
                right = [v.load(b, builder.add(k, builder.mul(b_row, _INT(s))), mask) for s in range(width)]
                found = []
                for r in range(height):
                    left = v.load(a, builder.add(k, builder.mul(a_row, _INT(r))), mask)
                    found += [v.multiply_add(left, right[s], sums[r * width + s]) for s in range(width)]
                return found

            starts = [  # the bias in one lane, to which the others are added
                builder.insert_element(v.zero, v.load_one(bias, _INT(s)), ir.IntType(32)(0))
                for s in range(width)
            ]
            sums = _summed(
                builder, whole, v.lanes, starts * height, lambda k, held: add(k, held, v.all_lanes())
            )
            sums = _summed(
                builder, rest, v.lanes, sums, lambda k, held: add(builder.add(k, whole), held, some)
            )
            for i, value in enumerate(v.sums(sums)):
                row, column = builder.mul(c_row, _INT(i // width)), builder.mul(c_column, _INT(i % width))
                builder.store(value, v.pointer(c, builder.add(row, column), v.number), align=v.bytes)

        _for_each_size(builder, rows, columns, (ROWS, VECTORS), emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11, like), codegen


def _add_products(c: Any, a: Any, b: Any, keep: Any, scale: Any) -> None:
    """c[i] <- keep * c[i] + scale * a[i] b[i], with c [i, m, n], a [i, m, k] and b [i, k, n]; the last axes
    of b and c are contiguous. With keep 0, what c holds is not read."""
    size = c.itemsize
    lanes = VECTOR_BYTES // size
    matrices, m, n = c.shape
    for i in range(matrices):
        to = c.ctypes.data + i * c.strides[0]
        left = a.ctypes.data + i * a.strides[0]
        right = b.ctypes.data + i * b.strides[0]
        for j in range(0, n, VECTORS * lanes):  # these columns of b stay in the first cache
            width = min(n - j, VECTORS * lanes)
            vectors = (width + lanes - 1) // lanes
            for r in range(0, m, ROWS):
                _outer_tile(
                    min(m - r, ROWS),
                    vectors,
                    width - (vectors - 1) * lanes,
                    to + r * c.strides[1] + j * size,
                    c.strides[1] // size,
                    left + r * a.strides[1],
                    a.strides[1] // size,
                    a.strides[2] // size,
                    right + j * size,
                    b.strides[1] // size,
                    b.shape[1],
                    keep,
                    scale,
                )


def _affine(c: Any, a: Any, b: Any, bias: Any) -> None:
    """c[i] <- a[i] b[i]^T + bias[i], with c [i, m, n], a [i, m, k], b [i, n, k] and bias [i, n]; the last
    axes of a, b and bias are contiguous."""
    size = c.itemsize
    matrices, m, n = c.shape
    for i in range(matrices):
        to = c.ctypes.data + i * c.strides[0]
        left = a.ctypes.data + i * a.strides[0]
        right = b.ctypes.data + i * b.strides[0]
        for s in range(0, n, VECTORS):  # these rows of b stay in the first cache
            for r in range(0, m, ROWS):
                _inner_tile(
                    min(m - r, ROWS),
                    min(n - s, VECTORS),
                    to + r * c.strides[1] + s * c.strides[2],
                    c.strides[1] // size,
                    c.strides[2] // size,
                    left + r * a.strides[1],
                    a.strides[1] // size,
                    right + s * b.strides[1],
                    b.strides[1] // size,
                    bias.ctypes.data + i * bias.strides[0] + s * size,
                    a.shape[2],
                    c[i, r, s],
                )


@cache
def linear_kernels(kind: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """`_add_products` and `_affine` for numbers of that kind (float32 or float64), compiled once and kept on
    disk for the next process."""
    number = getattr(types, kind)
    matrices, rows = (types.Array(number, axes, "A") for axes in (3, 2))
    return (
        compiled(_add_products, types.void(*[matrices] * 3, number, number)),
        compiled(_affine, types.void(*[matrices] * 3, rows)),
    )
