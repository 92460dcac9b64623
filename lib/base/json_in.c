/* Members of a parsed JSON object, by type. */
#include "lib/base/json_in.h"

#include "lib/base/cleanup.h"
#include "lib/base/path.h"

const char *json_in_string(const json_t *v, const char *key) {
        return json_string_value(json_object_get(v, key));
}

uint64_t json_in_u64(const json_t *v, const char *key) {
        json_int_t n = json_integer_value(json_object_get(v, key));
        return (uint64_t)MAX(n, (json_int_t)0);
}

char *json_in_path(const json_t *v, const char *key) {
        const char *s = json_in_string(v, key);
        char *ret = NULL;
        return s && path_unescape(s, &ret) == 0 ? ret : NULL;
}
