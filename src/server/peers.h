/* Connections seen from the side: who has left while the engine works for them, and who takes too
 * long to send a request. libmicrohttpd looks at neither while a connection is suspended.
 *
 * A client that has closed its end for writing may still read. It is probed: with a comment in a
 * stream, with an interim response (102) before one; if it has closed altogether, its system
 * answers with a reset, and the generation is abandoned. */
#ifndef DI_SERVER_PEERS_H
#define DI_SERVER_PEERS_H

#include "server/generation.h"

typedef struct di_peers di_peers;

/* A connection; private but for the address. */
typedef struct di_peer {
    char address[64];
    int fd;
    uint32_t slot, serial;
    double deadline;           /* when what is being read must be there; 0: never */
    di_generation *generation; /* held while it is watched */
    bool ask_again;            /* has closed one end and could not be asked about the other */
    bool interim;              /* the client knows interim responses (HTTP/1.1) */
} di_peer;

di_peers *di_peers_create(struct di_server *s, int max_peers, di_error *err);
void di_peers_destroy(di_peers *w); /* all peers are gone; NULL is allowed */

/* A connection begins: NULL if there are too many. And ends. */
di_peer *di_peers_open(di_peers *w, int fd, const char *address);
void di_peers_close(di_peers *w, di_peer *p);

/* It has so many seconds for what it is sending; 0: as long as it likes. */
void di_peers_expect(di_peers *w, di_peer *p, double seconds);

/* The engine works for it; and does not any more. */
void di_peers_begin(di_peers *w, di_peer *p, di_generation *g, bool interim);
void di_peers_end(di_peers *w, di_peer *p);

#endif
