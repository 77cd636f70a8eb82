#include "tests/gpu/kernels.h"

/* %i: the index of the thread, %step: how many there are. */
#define BEGIN                                                                                      \
	"	.reg .pred %q;\n"                                                                        \
	"	.reg .b32 %a, %b, %c, %v;\n"                                                             \
	"	.reg .b64 %at, %n, %i, %step, %x, %w, %sum, %out, %now, %end;\n"                         \
	"	ld.param.u64 %at, [p_at];\n"                                                             \
	"	cvta.to.global.u64 %at, %at;\n"                                                          \
	"	mov.u32 %a, %ctaid.x;\n"                                                                 \
	"	mov.u32 %b, %ntid.x;\n"                                                                  \
	"	mov.u32 %c, %tid.x;\n"                                                                   \
	"	mad.lo.u32 %a, %a, %b, %c;\n"                                                            \
	"	cvt.u64.u32 %i, %a;\n"                                                                   \
	"	mov.u32 %c, %nctaid.x;\n"                                                                \
	"	mul.wide.u32 %step, %b, %c;\n"

/* %x: the address of word %i. */
#define ADDRESS                                                                                    \
	"	shl.b64 %x, %i, 2;\n"                                                                    \
	"	add.u64 %x, %x, %at;\n"

const char kernels_ptx[] =
	".version 6.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry gpu_fill(.param .u64 p_at, .param .u64 p_n, .param .u32 p_seed)\n"
	"{\n" BEGIN "	ld.param.u64 %n, [p_n];\n"
	"	ld.param.u32 %a, [p_seed];\n"
	"NEXT:\n"
	"	setp.ge.u64 %q, %i, %n;\n"
	"	@%q bra DONE;\n"
	"	cvt.u32.u64 %v, %i;\n"
	"	mad.lo.u32 %v, %v, 2654435761, %a;\n" ADDRESS "	st.global.u32 [%x], %v;\n"
	"	add.u64 %i, %i, %step;\n"
	"	bra NEXT;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n"
	".visible .entry gpu_sum(.param .u64 p_at, .param .u64 p_n, .param .u64 p_out)\n"
	"{\n" BEGIN "	ld.param.u64 %n, [p_n];\n"
	"	ld.param.u64 %out, [p_out];\n"
	"	cvta.to.global.u64 %out, %out;\n"
	"	mov.u64 %sum, 0;\n"
	"NEXT:\n"
	"	setp.ge.u64 %q, %i, %n;\n"
	"	@%q bra DONE;\n" ADDRESS "	ld.global.u32 %v, [%x];\n"
	"	cvt.u64.u32 %w, %v;\n"
	"	shl.b64 %x, %i, 1;\n"
	"	add.u64 %x, %x, 1;\n"
	"	mad.lo.u64 %sum, %w, %x, %sum;\n"
	"	add.u64 %i, %i, %step;\n"
	"	bra NEXT;\n"
	"DONE:\n"
	"	red.global.add.u64 [%out], %sum;\n"
	"	ret;\n"
	"}\n"
	".visible .entry gpu_spin(.param .u64 p_at, .param .u64 p_n, .param .u64 p_out,\n"
	"	.param .u64 p_ns)\n"
	"{\n" BEGIN "	ld.param.u64 %n, [p_n];\n"
	"	ld.param.u64 %out, [p_out];\n"
	"	cvta.to.global.u64 %out, %out;\n"
	"	ld.param.u64 %end, [p_ns];\n"
	"	mov.u64 %now, %globaltimer;\n"
	"	add.u64 %end, %end, %now;\n"
	"	mov.u64 %sum, 0;\n"
	"	rem.u64 %i, %i, %n;\n"
	"NEXT:\n" ADDRESS "	ld.volatile.global.u32 %v, [%x];\n"
	"	cvt.u64.u32 %w, %v;\n"
	"	add.u64 %sum, %sum, %w;\n"
	"	add.u64 %i, %i, %step;\n"
	"	rem.u64 %i, %i, %n;\n"
	"	mov.u64 %now, %globaltimer;\n"
	"	setp.lt.u64 %q, %now, %end;\n"
	"	@%q bra NEXT;\n"
	"	red.global.add.u64 [%out], %sum;\n"
	"	ret;\n"
	"}\n"
	".visible .entry gpu_poke(.param .u64 p_at, .param .u32 p_value)\n"
	"{\n" BEGIN "	ld.param.u32 %v, [p_value];\n"
	"	setp.ne.u64 %q, %i, 0;\n"
	"	@%q bra DONE;\n"
	"	st.global.u32 [%at], %v;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n";
