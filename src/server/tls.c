/* Certificates: see tls.h. */
#include "server/tls.h"

#include <gnutls/x509.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"

enum { MOST_PEM = 1 << 20 };

/* A certificate with its key. Sessions refer to it for as long as they live, so it is kept until
 * the end; only files that have changed make a new one. */
typedef struct pair {
    struct pair *older;
    gnutls_certificate_credentials_t credentials;
    unsigned char files[32]; /* a hash of both */
} pair;

struct di_tls {
    const char *cert_path, *key_path;
    char *first_cert, *first_key;
    pthread_mutex_t lock;
    pair *now;
};

typedef struct pem {
    char *cert, *key;
    size_t cert_size, key_size;
} pem;

static void wipe(char *key) {
    if (key) {
        explicit_bzero(key, strlen(key));
    }
    di_free(key);
}

static void free_pem(pem *p) {
    di_free(p->cert);
    wipe(p->key);
}

static bool read_pem(const di_tls *t, pem *p, di_error *err) {
    struct stat key;
    if (stat(t->key_path, &key) == 0 && (key.st_mode & S_IRWXO)) {
        return di_fail(err, DI_ERR_ARGUMENT, "%s can be read by others (mode %03o), allowed is 640",
                       t->key_path, key.st_mode & 0777u);
    }
    return di_file_read(t->cert_path, MOST_PEM, &p->cert, &p->cert_size, err) &&
           di_file_read(t->key_path, MOST_PEM, &p->key, &p->key_size, err);
}

static void hash_files(const pem *p, unsigned char out[32]) {
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, 32);
    crypto_generichash_update(&state, (const unsigned char *)p->cert, p->cert_size);
    crypto_generichash_update(&state, (const unsigned char *)"", 1); /* PEM has no NUL */
    crypto_generichash_update(&state, (const unsigned char *)p->key, p->key_size);
    crypto_generichash_final(&state, out, 32);
}

/* Clients refuse one that is out of date, but the server may be there before its time. */
static void look_at_dates(const di_tls *t, const pair *p) {
    gnutls_x509_crt_t *list;
    unsigned count;
    if (gnutls_certificate_get_x509_crt(p->credentials, 0, &list, &count) != 0) {
        return;
    }
    time_t now = time(NULL);
    if (count > 0 && gnutls_x509_crt_get_expiration_time(list[0]) < now) {
        di_log(DI_LOG_WARN, "%s: the certificate has expired", t->cert_path);
    } else if (count > 0 && gnutls_x509_crt_get_activation_time(list[0]) > now) {
        di_log(DI_LOG_WARN, "%s: the certificate is not valid yet", t->cert_path);
    }
    for (unsigned i = 0; i < count; i++) {
        gnutls_x509_crt_deinit(list[i]);
    }
    gnutls_free(list);
}

static pair *make_pair(const di_tls *t, const pem *p, di_error *err) {
    gnutls_datum_t cert = {(unsigned char *)p->cert, (unsigned)p->cert_size};
    gnutls_datum_t key = {(unsigned char *)p->key, (unsigned)p->key_size};
    pair *made = di_calloc(1, sizeof *made);
    if (!made || gnutls_certificate_allocate_credentials(&made->credentials) != 0) {
        di_free(made);
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a certificate");
        return NULL;
    }
    int wrong = gnutls_certificate_set_x509_key_mem2(made->credentials, &cert, &key,
                                                     GNUTLS_X509_FMT_PEM, NULL, 0);
    if (wrong < 0) {
        gnutls_certificate_free_credentials(made->credentials);
        di_free(made);
        di_fail(err, DI_ERR_FORMAT,
                "%s and %s: %s; a certificate and its own key in PEM, not "
                "encrypted, are expected",
                t->cert_path, t->key_path, gnutls_strerror(wrong));
        return NULL;
    }
    hash_files(p, made->files);
    return made;
}

di_tls *di_tls_open(const char *cert_path, const char *key_path, di_error *err) {
    di_tls *t = di_calloc(1, sizeof *t);
    pem p = {0};
    if (!t) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for a certificate");
        return NULL;
    }
    t->cert_path = cert_path;
    t->key_path = key_path;
    pthread_mutex_init(&t->lock, NULL);
    t->now = read_pem(t, &p, err) ? make_pair(t, &p, err) : NULL;
    if (!t->now) {
        free_pem(&p);
        di_tls_close(t);
        return NULL;
    }
    t->first_cert = p.cert;
    t->first_key = p.key;
    look_at_dates(t, t->now);
    return t;
}

void di_tls_close(di_tls *t) {
    if (!t) {
        return;
    }
    while (t->now) {
        pair *p = t->now;
        t->now = p->older;
        gnutls_certificate_free_credentials(p->credentials);
        di_free(p);
    }
    di_free(t->first_cert);
    wipe(t->first_key);
    pthread_mutex_destroy(&t->lock);
    di_free(t);
}

bool di_tls_reload(di_tls *t, di_error *err) {
    pem p = {0};
    pair *fresh = read_pem(t, &p, err) ? make_pair(t, &p, err) : NULL;
    free_pem(&p);
    if (!fresh) {
        return false;
    }
    pthread_mutex_lock(&t->lock);
    bool changed = memcmp(fresh->files, t->now->files, sizeof fresh->files) != 0;
    if (changed) {
        fresh->older = t->now;
        t->now = fresh;
    }
    pthread_mutex_unlock(&t->lock);
    look_at_dates(t, fresh);
    if (!changed) {
        gnutls_certificate_free_credentials(fresh->credentials);
        di_free(fresh);
    }
    return true;
}

void di_tls_dress(di_tls *t, gnutls_session_t session) {
    pthread_mutex_lock(&t->lock);
    gnutls_certificate_credentials_t credentials = t->now->credentials;
    pthread_mutex_unlock(&t->lock);
    gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials);
}

const char *di_tls_first_cert(const di_tls *t) {
    return t->first_cert;
}

const char *di_tls_first_key(const di_tls *t) {
    return t->first_key;
}
