/* The certificate of HTTPS and its private key, from PEM files that may be replaced while the
 * server runs. A connection keeps what was in force when it began. Any thread may call anything but
 * open and close. */
#ifndef DI_SERVER_TLS_H
#define DI_SERVER_TLS_H

#include <gnutls/gnutls.h>

#include "base/error.h"

typedef struct di_tls di_tls;

/* Reads both; the paths must outlive it. NULL with DI_ERR_IO, DI_ERR_FORMAT (no PEM, a key that is
 * not the certificate's), DI_ERR_ARGUMENT (others can read the key) or DI_ERR_NO_MEMORY. */
di_tls *di_tls_open(const char *cert_path, const char *key_path, di_error *err);
void di_tls_close(di_tls *t); /* no connection uses it any more; NULL is allowed */

/* Reads both again. False: what was in force stays so. */
bool di_tls_reload(di_tls *t, di_error *err);

/* Gives a session that has not begun its handshake what is in force. */
void di_tls_dress(di_tls *t, gnutls_session_t session);

/* The files as they were at the opening, for a library that wants texts. */
const char *di_tls_first_cert(const di_tls *t);
const char *di_tls_first_key(const di_tls *t);

#endif
