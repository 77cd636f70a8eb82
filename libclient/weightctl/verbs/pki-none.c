/*
 * Certificates without OpenSSL: there are none.
 */
#include "libclient/weightctl/verbs/pki.h"

#include <stdio.h>

static int pki_none_refuse(char why[PKI_WHY_SIZE])
{
	(void)snprintf(why, PKI_WHY_SIZE,
		       "this weightctl was built without OpenSSL and cannot handle certificates; build "
		       "it where libssl-dev is installed");
	return -1;
}

int pki_make_ca(struct pki_pair *ret, char why[PKI_WHY_SIZE])
{
	(void)ret;
	return pki_none_refuse(why);
}

int pki_make_node(const struct pki_pair *ca, const char *name, unsigned days, struct pki_pair *ret,
		  bool *ret_cut, char why[PKI_WHY_SIZE])
{
	(void)ca;
	(void)name;
	(void)days;
	(void)ret;
	(void)ret_cut;
	return pki_none_refuse(why);
}

int pki_revoke(const struct pki_pair *ca, const char *before, const char *const *serials, size_t n,
	       char **ret, size_t *ret_n, char why[PKI_WHY_SIZE])
{
	(void)ca;
	(void)before;
	(void)serials;
	(void)n;
	(void)ret;
	(void)ret_n;
	return pki_none_refuse(why);
}

int pki_read(const char **pem, const char *ca, struct pki_certificate *ret, char why[PKI_WHY_SIZE])
{
	(void)pem;
	(void)ca;
	(void)ret;
	return pki_none_refuse(why);
}
