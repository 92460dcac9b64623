/* What the instance metadata service says of this instance's end. Beyond not crashing: an
 * announcement is a word that can stand in a log line, nothing is written unless there is one, and
 * the body is never read past its end. The first byte chooses the document. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/node_events/ec2_notices.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        if (n == 0)
                return 0;
        NoticeKind kind = (NoticeKind)(data[0] % N_NOTICE_KINDS);
        char *body = malloc(MAX(n - 1, (size_t)1)); /* of its own size: a sanitizer sees its end */
        Notice before, notice;

        check(body != NULL);
        memcpy(body, data + 1, n - 1);
        memset(&before, 0x55, sizeof before);
        notice = before;
        int r = notice_parse(kind, body, n - 1, &notice);
        check(r == 0 || r == 1 || r == -EINVAL);
        if (r == 1) {
                size_t length = strnlen(notice.action, sizeof notice.action);
                check(notice.kind == kind && length > 0 && length < sizeof notice.action);
                for (size_t i = 0; i < length; i++)
                        check(notice.action[i] > ' ' && notice.action[i] < 0x7f);
                check(kind != NOTICE_MAINTENANCE || notice.when_usec > 0);
                check(kind != NOTICE_REBALANCE || notice.when_usec == 0);
        } else
                check(memcmp(&notice, &before, sizeof notice) == 0);
        free(body);
        return 0;
}
