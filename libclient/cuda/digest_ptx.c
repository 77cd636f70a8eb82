/*
 * The digest kernel as PTX, which the driver makes code for its GPU of. The assembler reads the file,
 * which `make ptx` wrote.
 */
#include "libclient/cuda/digester.h"

__asm__(".pushsection .rodata\n"
	".global digest_ptx\n"
	".type digest_ptx, %object\n"
	"digest_ptx:\n"
	".incbin \"libclient/cuda/digest.ptx\"\n"
	".byte 0\n"
	".size digest_ptx, . - digest_ptx\n"
	".popsection\n");
