/* HTTP itself, by libmicrohttpd: sockets, headers, bodies, connections that sleep until the engine
 * has something for them. The only file that knows the library is http.c. */
#ifndef DI_SERVER_HTTP_H
#define DI_SERVER_HTTP_H

#include "base/error.h"

struct di_server;
typedef struct di_http di_http;

/* Binds and listens: sets s->address and s->port. `loopback`: nobody from elsewhere can reach it.
 */
int di_http_listen(struct di_server *s, bool *loopback, di_error *err);

/* Takes the socket, also when it fails. */
di_http *di_http_start(struct di_server *s, int listening, bool check_host, di_error *err);

/* Reads the certificate again; connections that are there keep theirs. False: the old one stays. */
bool di_http_reload(di_http *h, di_error *err);

/* No new connections are taken from here on. */
void di_http_quiesce(di_http *h);

/* No generation may run. */
void di_http_stop(di_http *h); /* NULL is allowed */

#endif
