/* The text of convert.py, which the assembler reads. */
#include "libclient/load/torch/convert_text.h"

__asm__(".pushsection .rodata\n"
	".global convert_text\n"
	".type convert_text, %object\n"
	"convert_text:\n"
	".incbin \"libclient/load/torch/convert.py\"\n"
	".byte 0\n"
	".size convert_text, . - convert_text\n"
	".popsection\n");
