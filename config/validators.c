/* The forms of strings: each is a predicate that says what is wrong, and one remedy. */
#include "config/validators.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#include "lib/base/parse.h"
#include "lib/http/url.h"

enum { NAME_MAX_BYTES = 64 };

/* ASCII only, whatever the locale. */
static bool is_letter_or_digit(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool consists_of(const char *text, const char *more) {
        for (; *text; text++)
                if (!is_letter_or_digit(*text) && !strchr(more, *text))
                        return false;
        return true;
}

static bool has_control(const char *text) {
        for (; *text; text++)
                if ((unsigned char)*text < 0x20 || *text == 0x7f)
                        return true;
        return false;
}

static bool refuse(StrBuf *fault, const char *what) {
        strbuf_add(fault, what);
        return false;
}

static bool check_name(const char *text, StrBuf *fault) {
        size_t n = strlen(text);

        if (n > NAME_MAX_BYTES)
                return refuse(fault, "is longer than 64 characters");
        if (n == 0 || !consists_of(text, "._-") || strcmp(text, ".") == 0 ||
            strcmp(text, "..") == 0)
                return refuse(fault, "is not a name of letters, digits, '.', '_' and '-'");
        return true;
}

/* Whether a component of the path is `..`. */
static bool has_parent_component(const char *path) {
        while (*path) {
                size_t n = strcspn(path, "/");
                if (n == 2 && path[0] == '.' && path[1] == '.')
                        return true;
                path += n + strspn(path + n, "/");
        }
        return false;
}

static bool check_path(const char *text, StrBuf *fault) {
        if (text[0] != '/')
                return refuse(fault, "is not an absolute path");
        if (has_parent_component(text))
                return refuse(fault, "has a component '..'");
        if (has_control(text))
                return refuse(fault, "has a control character in it");
        return true;
}

static bool check_socket(const char *text, StrBuf *fault) {
        const size_t max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;

        if (!check_path(text, fault))
                return false;
        if (strlen(text) > max) {
                strbuf_addf(fault,
                            "is longer than the %zu bytes that a unix socket's path may have", max);
                return false;
        }
        return true;
}

static bool check_variables(const char *text, const char *letters, StrBuf *fault) {
        for (const char *p = strchr(text, '%'); p; p = strchr(p + 2, '%')) {
                if (p[1] == '\0')
                        return refuse(fault, "ends in a lone '%'");
                if (p[1] == '%' || strchr(letters, p[1]))
                        continue;
                if (is_letter_or_digit(p[1]))
                        strbuf_addf(fault, "has '%%%c', which is no format variable here", p[1]);
                else
                        strbuf_add(fault, "has a '%' without the letter of a format variable");
                return false;
        }
        return true;
}

static bool check_source_path(const char *text, StrBuf *fault) {
        return check_path(text, fault) && check_variables(text, FORM_SOURCE_VARIABLES, fault);
}

static bool check_volume_path(const char *text, StrBuf *fault) {
        return check_path(text, fault) && check_variables(text, FORM_DESTINATION_VARIABLES, fault);
}

static bool check_prefix(const char *text, StrBuf *fault) {
        const char *p = text;

        if (*text == '/')
                return refuse(fault, "begins with a slash, which would be part of every key");
        if (has_control(text))
                return refuse(fault, "has a control character in it");
        while (*p) {
                size_t n = strcspn(p, "/");
                if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
                        return refuse(fault, "has an empty component, '.' or '..'");
                p += n;
                if (*p == '/' && *++p == '\0')
                        return refuse(fault, "ends in a slash");
        }
        return check_variables(text, FORM_DESTINATION_VARIABLES, fault);
}

static const char *skip_prefix(const char *text, const char *start) {
        size_t n = strlen(start);
        return strncmp(text, start, n) == 0 ? text + n : NULL;
}

static bool check_listen(const char *text, StrBuf *fault) {
        _cleanup_free_ char *address = NULL;
        _cleanup_(url_done) Url u = { 0 };

        if (asprintf(&address, "tcp://%s", text) < 0)
                address = NULL;
        return (address && url_parse(&u, address) == 0 && u.port > 0 && u.is_origin) ||
               refuse(fault, "is not host:port");
}

static bool check_bus(const char *text, StrBuf *fault) {
        const char *path = skip_prefix(text, "ipc://");
        _cleanup_(url_done) Url u = { 0 };

        if (path ? check_socket(path, &(StrBuf){ .failed = true })
                 : url_parse(&u, text) == 0 && strcmp(u.scheme, "tcp") == 0 && u.port > 0 &&
                            u.is_origin)
                return true;
        return refuse(fault, "is not an address that agents can use");
}

static bool check_endpoint(const char *text, StrBuf *fault) {
        _cleanup_(url_done) Url u = { 0 };

        return (url_parse(&u, text) == 0 && url_is_http(&u) && u.is_origin) ||
               refuse(fault, "is not http(s)://host[:port]");
}

static bool check_proxy(const char *text, StrBuf *fault) {
        _cleanup_(url_done) Url u = { 0 };

        if (url_parse(&u, text) == 0 && u.is_origin &&
            (url_is_http(&u) || strcmp(u.scheme, "socks5") == 0 ||
             strcmp(u.scheme, "socks5h") == 0))
                return true;
        return refuse(fault, "is not the address of a proxy");
}

static bool is_bucket(const char *text, size_t n) {
        if (n < 3 || n > 63)
                return false;
        for (size_t i = 0; i < n; i++) {
                bool inner = i > 0 && i + 1 < n;
                char c = text[i];
                if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                      (inner && (c == '-' || c == '.'))))
                        return false;
        }
        return true;
}

static bool check_bucket(const char *text, StrBuf *fault) {
        struct in_addr address;

        if (!is_bucket(text, strlen(text)))
                return refuse(fault, "is not the name of a bucket");
        if (strstr(text, ".."))
                return refuse(fault, "has two dots in a row, which no bucket's name has");
        if (inet_pton(AF_INET, text, &address) == 1)
                return refuse(fault, "looks like an IP address, which no bucket's name does");
        return true;
}

static bool check_s3_prefix(const char *text, StrBuf *fault) {
        const char *bucket = skip_prefix(text, "s3://");
        size_t n = bucket ? strcspn(bucket, "/") : 0;

        if (!bucket || !is_bucket(bucket, n))
                return refuse(fault, "is not s3://bucket/prefix");
        if (has_parent_component(bucket + n) || has_control(text))
                return refuse(fault, "has a component '..' or a control character");
        return true;
}

static bool check_region(const char *text, StrBuf *fault) {
        if (!is_letter_or_digit(text[0]) || strlen(text) > NAME_MAX_BYTES ||
            !consists_of(text, "-_"))
                return refuse(fault, "is not the name of a region");
        return true;
}

static bool check_storage_class(const char *text, StrBuf *fault) {
        for (const char *p = text; *p; p++)
                if (!((*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_') ||
                    p - text >= NAME_MAX_BYTES)
                        return refuse(fault, "is not a storage class");
        return true;
}

static bool check_profile(const char *text, StrBuf *fault) {
        if (has_control(text) || strpbrk(text, "[]"))
                return refuse(fault, "has a bracket or a control character in it");
        return true;
}

static bool check_kms_key(const char *text, StrBuf *fault) {
        return consists_of(text, ":/_-") || refuse(fault, "is not the id or ARN of a key");
}

/* What a tag may be made of; what is not ASCII is a letter, or the store says that it is none.
 * @see S3 User Guide, "Categorizing your objects using tags" */
static bool check_tag(const char *text, size_t max, StrBuf *fault) {
        size_t n = 0;

        for (const char *p = text; *p; p++) {
                unsigned char c = (unsigned char)*p;
                if (c < 0x80 && !is_letter_or_digit(*p) && !strchr(" +-=._:/@", *p))
                        return refuse(fault, "has a character that no tag may have");
                n += (c & 0xc0) != 0x80; /* begins a character */
        }
        if (n > max) {
                strbuf_addf(fault, "is longer than %zu characters", max);
                return false;
        }
        return true;
}

static bool check_tag_name(const char *text, StrBuf *fault) {
        if (strncasecmp(text, "aws:", 4) == 0)
                return refuse(fault, "begins with aws:, which is AWS's own");
        return check_tag(text, 128, fault);
}

static bool check_tag_value(const char *text, StrBuf *fault) {
        return check_tag(text, 256, fault);
}

static bool check_account(const char *text, StrBuf *fault) {
        if (strlen(text) != 12 || strspn(text, "0123456789") != 12)
                return refuse(fault, "is not the number of an account");
        return true;
}

static bool check_pattern(const char *text, StrBuf *fault) {
        if (text[0] == '\0')
                return refuse(fault, "matches nothing");
        if (text[0] == '/')
                return refuse(fault, "begins with a slash, but member paths are relative");
        return true;
}

static bool check_variable(const char *text, StrBuf *fault) {
        if (text[0] == '\0' || !consists_of(text, "_*?[]!-"))
                return refuse(fault, "is not a pattern for names of variables");
        return true;
}

/* clang-format off */
const Form form_name = { .check = check_name, .what = "a name", .remedy = "use 1 to 64 letters, digits, '.', '_' and '-'" };
const Form form_path = { .check = check_path, .what = "an absolute path", .remedy = "write the whole path, from / on, without '..'", .is_path = true };
const Form form_socket = { .check = check_socket, .what = "an absolute path", .remedy = "write a short whole path, from / on, without '..'", .is_path = true };
const Form form_source_path = { .check = check_source_path, .what = "a path template",
        .remedy = "write the whole path, from / on, without '..'; %d %c %p %t %l %i are the format variables, %% is a percent sign",
        .is_path = true, .variables = FORM_SOURCE_VARIABLES };
const Form form_volume_path = { .check = check_volume_path, .what = "a path template",
        .remedy = "write the whole path, from / on, without '..'; %d %c %p %t %l %i %k %n %h %u are the format variables, %% is a percent sign",
        .is_path = true, .variables = FORM_DESTINATION_VARIABLES };
const Form form_prefix = { .check = check_prefix, .what = "a key template",
        .remedy = "write it as neuron/%d-%c; %d %c %p %t %l %i %k %n %h %u are the format variables, %% is a percent sign",
        .variables = FORM_DESTINATION_VARIABLES };
const Form form_listen = { .check = check_listen, .what = "host:port", .remedy = "write it as 127.0.0.1:9733 or [::1]:9733, the port from 1 to 65535" };
const Form form_bus = { .check = check_bus, .what = "tcp://host:port or ipc://path", .remedy = "write it as tcp://10.0.0.7:7733 or ipc:///run/name.sock" };
const Form form_endpoint = { .check = check_endpoint, .what = "http(s)://host[:port]", .remedy = "write it as https://store.example:9000, without a path" };
const Form form_proxy = { .check = check_proxy, .what = "scheme://host[:port]", .remedy = "write it as http://proxy.example:3128, without a user and a path" };
const Form form_s3_prefix = { .check = check_s3_prefix, .what = "s3://bucket/prefix", .remedy = "write it as s3://bucket/prefix" };
const Form form_bucket = { .check = check_bucket, .what = "the name of a bucket", .remedy = "use 3 to 63 small letters, digits, '-' and '.', a letter or digit first and last" };
const Form form_region = { .check = check_region, .what = "the name of a region", .remedy = "write it as us-east-1" };
const Form form_storage_class = { .check = check_storage_class, .what = "a storage class", .remedy = "write it as STANDARD_IA" };
const Form form_profile = { .check = check_profile, .what = "the name of a profile", .remedy = "write it as it stands in the file, without the brackets" };
const Form form_kms_key = { .check = check_kms_key, .what = "the id or ARN of a key", .remedy = "write its id, alias/NAME, or the whole ARN from arn: on" };
const Form form_tag_name = { .check = check_tag_name, .what = "the name of a tag", .remedy = "use letters, digits, blanks and + - = . _ : / @, at most 128 of them, and do not begin with aws:" };
const Form form_tag_value = { .check = check_tag_value, .what = "the value of a tag", .remedy = "use letters, digits, blanks and + - = . _ : / @, at most 256 of them" };
const Form form_account = { .check = check_account, .what = "12 digits", .remedy = "write its 12 digits in quotes" };
const Form form_pattern = { .check = check_pattern, .what = "a pattern", .remedy = "write a pattern such as \"*.tmp\" or \"cache/*\"" };
const Form form_variable = { .check = check_variable, .what = "a pattern", .remedy = "write a pattern such as \"NEURON_*\"" };
/* clang-format on */

/* The first variable of a template, past each `%%`. */
static const char *first_variable(const char *path_template) {
        for (const char *p = path_template; (p = strchr(p, '%')) && p[1] != '\0'; p += 2)
                if (p[1] != '%')
                        return p;
        return NULL;
}

char *form_fixed_part(const char *path_template) {
        const char *variable = first_variable(path_template);
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;
        size_t n = strlen(path_template);

        if (variable)
                for (n = (size_t)(variable - path_template); n > 0 && path_template[n - 1] != '/';)
                        n--;
        while (n > 0 && path_template[n - 1] == '/')
                n--;
        for (size_t i = 0; i < n; i++) {
                strbuf_add_n(&out, path_template + i, 1);
                if (path_template[i] == '%' && i + 1 < n)
                        i++;
        }
        if (n == 0 && path_template[0] == '/')
                strbuf_add(&out, "/");
        return strbuf_take(&out);
}

bool form_has_variable(const char *path_template, char letter) {
        for (const char *p = path_template; (p = strchr(p, '%')) && p[1] != '\0'; p += 2)
                if (p[1] == letter)
                        return true;
        return false;
}
