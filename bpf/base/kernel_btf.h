/*
 * The kernel's description of its types (BTF), parsed once for many objects
 *
 * libbpf parses it for each object that it loads and for each function that it looks up: 15 to 20 ms, and a weightd-trace
 * that begins takes a dozen of these.
 */
#pragma once

/* Between these two it is kept, which takes 6 MB. */
void kernel_btf_hold(void);
void kernel_btf_drop(void);
