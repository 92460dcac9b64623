/* Whether a name speaks of a secret: the dictionary. In doubt it does, but for words that training jobs use all day (tokenizer, cache_key). */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/redact.h"

enum { NAME_MAX_BYTES = 256, WORDS_MAX = 32 };

/* Anywhere in a name, whatever its case and with `-`, `_` and `.` left out. */
static const char *const parts[] = {
        "secret",     "passw",      "passphrase",  "passcode",  "credential",
        "apikey",     "accesskey",  "privatekey",  "privkey",   "authkey",
        "accountkey", "signingkey", "masterkey",   "sharedkey", "encryptionkey",
        "sshkey",     "authtoken",  "accesstoken", "webhook",   "authorization",
};

/* As a word of a name. */
static const char *const words[] = {
        "auth", "bearer", "cookie", "cookies", "cred",      "creds",
        "jwt",  "otp",    "pwd",    "sig",     "signature",
};

/* Before `key` at the end of a name: then it opens nothing. */
static const char *const harmless_keys[] = {
        "cache",  "column",  "dict", "foreign", "group", "hash",      "host",    "index",
        "job",    "lookup",  "map",  "object",  "order", "partition", "primary", "pub",
        "public", "routing", "row",  "s3",      "sort",  "state",     "store",
};

static bool is_in(const char *word, const char *const *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (strcmp(word, list[i]) == 0)
                        return true;
        return false;
}

/* The name in lower case without separators, and the same cut into words: at separators, and where a capital follows a small letter. */
typedef struct Words {
        char joined[NAME_MAX_BYTES + 1], cut[2 * NAME_MAX_BYTES + 1];
        const char *word[WORDS_MAX];
        size_t n;
} Words;

static void cut_words(const char *name, Words *ret) {
        size_t n_joined = 0, n_cut = 0;
        bool inside = false;
        char before = '\0';
        ret->n = 0;
        for (; *name && n_joined < NAME_MAX_BYTES; before = *name++) {
                unsigned char c = (unsigned char)*name;
                if (c == '-' || c == '_' || c == '.') {
                        inside = false;
                        continue;
                }
                if (!inside || (isupper(c) && islower((unsigned char)before))) {
                        if (n_cut > 0)
                                ret->cut[n_cut++] = '\0';
                        if (ret->n == WORDS_MAX) /* the last words say what it is */
                                memmove(ret->word, ret->word + 1, --ret->n * sizeof ret->word[0]);
                        ret->word[ret->n++] = ret->cut + n_cut;
                        inside = true;
                }
                ret->joined[n_joined++] = ret->cut[n_cut++] = (char)tolower(c);
        }
        ret->joined[n_joined] = ret->cut[n_cut] = '\0';
}

/* `token` anywhere, but for what a tokenizer is called and counts: numbers are told by their value (redact.c). */
static bool speaks_of_token(const char *joined) {
        for (const char *s = joined; (s = strstr(s, "token")); s += 5)
                if (strncmp(s + 5, "iz", 2) != 0 && strncmp(s + 5, "is", 2) != 0)
                        return true;
        return false;
}

static bool ends_in_key(const Words *w) {
        const char *last = w->n > 0 ? w->word[w->n - 1] : "";
        if (w->n < 2)
                return false;
        if (strcmp(last, "key") == 0 || strcmp(last, "keys") == 0)
                return !is_in(w->word[w->n - 2], harmless_keys, ELEMENTSOF(harmless_keys));
        return strcmp(last, "pass") == 0 || strcmp(last, "pw") == 0;
}

bool redact_name_is_secret(const char *name) {
        size_t n = strlen(name);
        Words w;
        if (n > NAME_MAX_BYTES)
                name += n - NAME_MAX_BYTES;                          /* its end says what it is */
        if (strcmp(name, "PWD") == 0 || strcmp(name, "OLDPWD") == 0) /* the shell's directories */
                return false;
        cut_words(name, &w);
        for (size_t i = 0; i < ELEMENTSOF(parts); i++)
                if (strstr(w.joined, parts[i]))
                        return true;
        for (size_t i = 0; i < w.n; i++)
                if (is_in(w.word[i], words, ELEMENTSOF(words)))
                        return true;
        return speaks_of_token(w.joined) || ends_in_key(&w);
}
