#include "uploaders/aws/credentials_json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "uploaders/aws/credentials_say.h"
#include "uploaders/s3/s3_time.h"

#define MAX_TOLD_BYTES 200 /* of a service's own words */
#define MAX_DEPTH 16

typedef struct Reader {
        const char *at;
        char *to; /* where the next string is spelled out: secret memory, as large as the text */
} Reader;

typedef struct Member {
        const char *name, *string,
                *bare; /* the value: a string, or a number or word as it stands in the text */
        size_t n_bare;
} Member;

/* What is looked for; NULL = not there, or no string, or an empty one. */
typedef struct Found {
        const char *access_key, *secret_key, *token, *session_token, *expiration, *code, *message;
        bool has_version, is_version_1;
} Found;

static char next(Reader *r) {
        r->at += strspn(r->at, " \t\r\n");
        return *r->at;
}

static bool take(Reader *r, char c) {
        if (next(r) != c)
                return false;
        r->at++;
        return true;
}

/* A character after a backslash; beyond ASCII all are `?`, since no key has one and a message can do without. */
static bool read_escape(Reader *r) {
        static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        char hex[5] = "";
        uint8_t code[2];
        const char *at;

        if (*r->at == 'u') {
                (void)strncpy(hex, r->at + 1,
                              4); /* shorter at the text's end: then it is no number */
                if (parse_hex_bytes(hex, code, sizeof code) < 0)
                        return false;
                *r->to++ = code[0] == 0 && code[1] > 0 && code[1] < 0x80 ? (char)code[1] : '?';
                r->at += 5;
                return true;
        }
        at = *r->at ? strchr(letters, *r->at) : NULL;
        if (!at)
                return false;
        *r->to++ = meant[at - letters];
        r->at++;
        return true;
}

static bool read_string(Reader *r, const char **ret) {
        if (!take(r, '"'))
                return false;
        *ret = r->to;
        while (*r->at != '"') {
                if ((unsigned char)*r->at < ' ') /* the text's end among them */
                        return false;
                if (*r->at != '\\') {
                        *r->to++ = *r->at++;
                        continue;
                }
                r->at++;
                if (!read_escape(r))
                        return false;
        }
        r->at++;
        *r->to++ = '\0';
        return true;
}

static bool read_value(Reader *r, unsigned depth, Member *ret);

/* An object or array that holds nothing for us. */
static bool skip_nested(Reader *r, unsigned depth) {
        bool is_object = *r->at++ == '{';
        char end = is_object ? '}' : ']';
        const char *name;
        Member ignored;

        if (depth >= MAX_DEPTH)
                return false;
        if (take(r, end))
                return true;
        do {
                if (is_object && (!read_string(r, &name) || !take(r, ':')))
                        return false;
                if (!read_value(r, depth + 1, &ignored))
                        return false;
        } while (take(r, ','));
        return take(r, end);
}

static bool read_value(Reader *r, unsigned depth, Member *ret) {
        ret->string = ret->bare = NULL;
        ret->n_bare = 0;
        switch (next(r)) {
        case '"':
                return read_string(r, &ret->string);
        case '{':
        case '[':
                return skip_nested(r, depth);
        default:
                ret->bare = r->at;
                ret->n_bare = strspn(r->at, "-+.0123456789abcdefghijklmnopqrstuvwxyzE");
                r->at += ret->n_bare;
                return ret->n_bare > 0;
        }
}

static void note(Found *f, const Member *m) {
        const struct {
                const char *name, **value;
        } wanted[] = {
                { "AccessKeyId", &f->access_key },
                { "SecretAccessKey", &f->secret_key },
                { "Token", &f->token },
                { "SessionToken", &f->session_token },
                { "Expiration", &f->expiration },
                { "Code", &f->code },
                { "Message", &f->message },
        };

        for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                if (strcmp(m->name, wanted[i].name) == 0)
                        *wanted[i].value = m->string && *m->string ? m->string : NULL;
        if (strcmp(m->name, "Version") == 0) {
                f->has_version = true;
                f->is_version_1 = m->n_bare == 1 && *m->bare == '1';
        }
}

/* @return whether the text is one object and nothing else */
static bool read_object(Reader *r, Found *ret) {
        Member m;

        if (!take(r, '{'))
                return false;
        if (!take(r, '}')) {
                do {
                        if (!read_string(r, &m.name) || !take(r, ':') || !read_value(r, 0, &m))
                                return false;
                        note(ret, &m);
                } while (take(r, ','));
                if (!take(r, '}'))
                        return false;
        }
        return next(r) == '\0';
}

/* IMDS answers 200 with a Code that is not Success, e.g. AssumeRoleUnauthorizedAccess when the role does not trust EC2. */
static char *check(CredentialsJsonKind kind, const Found *f) {
        if (kind == CREDENTIALS_JSON_PROCESS && !f->has_version)
                return credentials_say("its JSON has no \"Version\": it must say 1");
        if (kind == CREDENTIALS_JSON_PROCESS && !f->is_version_1)
                return credentials_say("the \"Version\" of its JSON is not 1");
        if (kind == CREDENTIALS_JSON_SERVICE && f->code && strcmp(f->code, "Success") != 0)
                return credentials_say("it says %.*s%s%.*s", MAX_TOLD_BYTES, f->code,
                                       f->message ? ": " : "", MAX_TOLD_BYTES,
                                       f->message ? f->message : "");
        if (!f->access_key || !f->secret_key)
                return credentials_say("its JSON has no \"%s\"",
                                       f->access_key ? "SecretAccessKey" : "AccessKeyId");
        return NULL;
}

static int take_found(CredentialsSet *ret, CredentialsJsonKind kind, const Found *f,
                      char **ret_fault) {
        const AwsKeys keys = {
                .access_key = f->access_key,
                .secret_key = f->secret_key,
                .token = kind == CREDENTIALS_JSON_PROCESS ? f->session_token : f->token,
        };
        uint64_t expires_usec = 0;

        *ret_fault = check(kind, f);
        if (*ret_fault)
                return -EINVAL;
        if (f->expiration && s3_time_parse(f->expiration, &expires_usec) < 0) {
                *ret_fault = credentials_say("the \"Expiration\" of its JSON is no time such as "
                                             "2026-05-27T05:21:35Z");
                return -EINVAL;
        }
        int r = credentials_set_make(ret, &keys, expires_usec);
        if (r == -EINVAL)
                *ret_fault = credentials_say("a key or token in its JSON has characters that none "
                                             "can have, or is too long");
        return r;
}

int credentials_json_read(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
                          char **ret_fault) {
        /* No string is longer than it stands in the text, where its quotes make room for the NUL. */
        _cleanup_(credentials_secret_freep) char *strings =
                credentials_secret_new(strlen(text) + 1);
        Reader r = { .at = text, .to = strings };
        Found found = { 0 };

        *ret_fault = NULL;
        if (!strings)
                return -ENOMEM;
        if (read_object(&r, &found))
                return take_found(ret, kind, &found, ret_fault);
        *ret_fault = credentials_say("it did not answer with a JSON object");
        return -EINVAL;
}
