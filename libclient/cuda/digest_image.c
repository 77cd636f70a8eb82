/*
 * The digest kernel in two forms, as `make digest-kernel` wrote them: code for some GPUs, and PTX, of which the driver
 * makes code for any. The assembler reads the files.
 */
#include "libclient/cuda/digester.h"

__asm__(".pushsection .rodata\n"
	".global digest_fatbin\n"
	".type digest_fatbin, %object\n"
	".balign 16\n"
	"digest_fatbin:\n"
	".incbin \"libclient/cuda/digest.fatbin\"\n"
	".size digest_fatbin, . - digest_fatbin\n"
	".global digest_ptx\n"
	".type digest_ptx, %object\n"
	"digest_ptx:\n"
	".incbin \"libclient/cuda/digest.ptx\"\n"
	".byte 0\n"
	".size digest_ptx, . - digest_ptx\n"
	".popsection\n");
