"""Curves, drawn with dots on a terminal, and as a PNG."""

import math
import zlib

import numpy

COLUMNS, ROWS = 68, 14  # characters, of 2 x 4 dots each
WIDTH, HEIGHT = 960, 480  # pixels
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 50
SCALE = 2  # pixels of a dot of a letter
INK, GRID, PAPER = (40, 40, 40), (225, 225, 225), (255, 255, 255)

# Letters of 5 x 7 dots: a number for each row, the highest bit to the left.
GLYPHS = dict(zip("0123456789abcdefghijklmnopqrstuvwxyzDPT.,:-", (
    "0e11131519110e", "040c040404040e", "0e11010204081f", "1f02040201110e", "02060a121f0202", "1f101e0101110e", "0608101e11110e",
    "1f010204080808", "0e11110e11110e", "0e11110f01020c", "00000e010f110f", "10101619111e00", "00000e1010110e", "01010d1311110f",
    "00000e111f100e", "0609081c080808", "00000f110f010e", "10101619111111", "04000c0404040e", "0200060202120c", "10101214181412",
    "0c04040404040e", "00001a15151111", "00001619111111", "00000e1111110e", "00001e111e1010", "00000d130f0101", "00001619101010",
    "00000e100e011e", "08081c08080906", "0000111111130d", "00001111110a04", "0000111115150a", "0000110a040a11",
    "0011110f01110e", "00001f0204081f", "1c12111111121c", "1e11111e101010", "1f040404040404", "00000000000c0c", "00000000060204",
    "000c0c000c0c00", "0000001f000000")))


# --- Terminal -------------------------------------------------------------------------------------


def draw(curve, marked):
    """Lines of text with the curve, a list of numbers; a row of marks has the steps `marked`."""
    low, high = min(curve), max(curve)
    dots = numpy.zeros((4 * ROWS, 2 * COLUMNS), bool)
    xs = numpy.arange(2 * COLUMNS)
    values = numpy.interp(xs * (len(curve) - 1) / (2 * COLUMNS - 1), range(len(curve)), curve)
    ys = numpy.round((high - values) / (high - low) * (4 * ROWS - 1)).astype(int)
    for x, y, before in zip(xs, ys, [ys[0], *ys]):
        dots[min(y, before):max(y, before) + 1, x] = True
    lines = [f"{_tick(row, low, high):>6} ┤{''.join(map(_character, _cells(dots, row)))}" for row in range(ROWS)]
    marks = [" "] * COLUMNS
    for step in marked:
        marks[round(step * (COLUMNS - 1) / (len(curve) - 1))] = "▲"
    last = f"step {len(curve)}"
    return [*lines, f"{'':>6} └{'─' * COLUMNS}", f"{'':>8}{''.join(marks)}".rstrip(), f"{'':>8}1{last:>{COLUMNS - 1}}"]


def _tick(row, low, high):
    """The number beside a row of characters: of every other one."""
    return f"{high - (high - low) * row / (ROWS - 1):.2f}" if row % 2 == 0 or row == ROWS - 1 else ""


def _cells(dots, row):
    return (dots[4 * row:4 * row + 4, 2 * column:2 * column + 2] for column in range(COLUMNS))


def _character(cell):
    """Braille patterns have a bit for each dot, the lowest row last."""
    bits = (0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80)
    return chr(0x2800 + sum(bit for bit, dot in zip(bits, cell.flatten()) if dot))


# --- Picture --------------------------------------------------------------------------------------


class Picture:
    """Pixels, [HEIGHT][WIDTH][red, green, blue]."""

    def __init__(self):
        self.pixels = numpy.full((HEIGHT, WIDTH, 3), PAPER, float)

    def text(self, x, y, words, colour=INK):
        """Words, with their upper left corner there."""
        for letter in words:
            for row, dots in enumerate(bytes.fromhex(GLYPHS.get(letter, "00" * 7))):
                for column in range(5):
                    if dots >> (4 - column) & 1:
                        at_y, at_x = y + SCALE * row, x + SCALE * column
                        self.pixels[at_y:at_y + SCALE, at_x:at_x + SCALE] = colour
            x += 6 * SCALE
        return x

    def line(self, points, colour, width=2.0):
        """A line through points (x, y), its edges smoothed."""
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            left, right = int(min(x0, x1) - width - 1), int(max(x0, x1) + width + 2)
            top, bottom = int(min(y0, y1) - width - 1), int(max(y0, y1) + width + 2)
            ys, xs = numpy.mgrid[top:bottom, left:right]
            dx, dy = x1 - x0, y1 - y0
            along = numpy.clip(((xs - x0) * dx + (ys - y0) * dy) / (dx * dx + dy * dy or 1), 0, 1)
            distance = numpy.hypot(xs - x0 - along * dx, ys - y0 - along * dy)
            cover = numpy.clip(width / 2 + 0.5 - distance, 0, 1)[:, :, None]
            part = self.pixels[top:bottom, left:right]
            part[:] = (1 - cover) * part + cover * colour

    def png(self):
        """Its bytes: 8 bits a colour, no filter (PNG, third edition, sections 5 and 11)."""
        rows = numpy.zeros((HEIGHT, 1 + 3 * WIDTH), numpy.uint8)
        rows[:, 1:] = numpy.round(self.pixels).astype(numpy.uint8).reshape(HEIGHT, -1)
        head = WIDTH.to_bytes(4, "big") + HEIGHT.to_bytes(4, "big") + bytes((8, 2, 0, 0, 0))
        chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks)


def picture(curves, marked, mark):
    """
    A PNG: two `curves` by name, of as many numbers, the second one over the first.
    `marked`: steps with a vertical line; `mark`: its meaning.
    """
    image, n = Picture(), len(next(iter(curves.values())))
    every = [value for curve in curves.values() for value in curve]
    low, high = math.floor(min(every)), math.ceil(max(every))

    def at(step, value):
        return (LEFT + step * (WIDTH - LEFT - RIGHT) / (n - 1), TOP + (high - value) * (HEIGHT - TOP - BOTTOM) / (high - low))

    for value in range(low, high + 1):
        image.line([at(0, value), at(n - 1, value)], GRID, 1)
        image.text(LEFT - 34, int(at(0, value)[1]) - 7, str(value))
    for step in range(0, n, max(1, n // 10)):
        image.text(int(at(step, low)[0]) - 10, HEIGHT - BOTTOM + 12, str(step + 1))
    image.text(WIDTH // 2 - 24, HEIGHT - 20, "step")
    for step in marked:
        image.line([at(step, low), at(step, high)], (200, 60, 60), 1)
    image.text(6, 14, "loss")
    x = LEFT
    for (name, curve), (colour, width) in zip(curves.items(), (((250, 170, 60), 6), ((30, 90, 180), 2))):
        image.line([at(step, value) for step, value in enumerate(curve)], colour, width)
        x = image.text(x, 14, name, colour) + 30
    image.text(x, 14, mark, (200, 60, 60))
    return image.png()
