#include "uploaders/aws/credentials_words.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Copies one word without its quotes to `to` and ends it.
 * @return where it ended in the text, NULL with *ret_fault */
static const char *copy_word(const char *from, char **to, const char **ret_fault) {
        char quote = 0;

        for (; *from; from++) {
                if (!quote && strchr(" \t\r\n", *from))
                        break;
                if (quote ? *from == quote : *from == '"' || *from == '\'') {
                        quote = quote ? 0 : *from;
                        continue;
                }
                /* Between double quotes a backslash is one unless it stands before a quote or another. */
                if (*from == '\\' &&
                    (!quote || (quote == '"' && (from[1] == '"' || from[1] == '\\')))) {
                        from++;
                        if (!*from) {
                                *ret_fault = "it ends in a backslash";
                                return NULL;
                        }
                }
                *(*to)++ = *from;
        }
        if (quote) {
                *ret_fault = "a quotation does not end";
                return NULL;
        }
        *(*to)++ = '\0';
        return from;
}

int credentials_words_split(const char *text, char ***ret, const char **ret_fault) {
        size_t n_text = strlen(text), max_words = n_text / 2 + 1, n = 0;

        /* The words together with their NULs are never longer than the text with its own. */
        char **words = malloc((max_words + 1) * sizeof *words + n_text + 1);
        if (!words)
                return -ENOMEM;
        char *to = (char *)(words + max_words + 1);
        for (;;) {
                text += strspn(text, " \t\r\n");
                if (!*text)
                        break;
                words[n++] = to;
                text = copy_word(text, &to, ret_fault);
                if (!text) {
                        free(words);
                        return -EINVAL;
                }
        }
        if (n == 0) {
                free(words);
                *ret_fault = "it is empty";
                return -EINVAL;
        }
        words[n] = NULL;
        *ret = words;
        return 0;
}
