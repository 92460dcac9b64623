/* Secrets go, all else stays: a table of what each looks like in the field. The secrets are made
 * up. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

/* ---- work, counted: bytes that are compared, and bytes that are searched a vector at a time ----
 */

static uint64_t n_steps;

static const char *count_strchr(const char *s, int c) {
        n_steps++;
        return strchr(s, c);
}

static int count_isalnum(int c) {
        n_steps++;
        return isalnum(c);
}

static void *count_memchr(const void *s, int c, size_t n) {
        n_steps += n / 32 + 1;
        return memchr(s, c, n);
}

static void *count_memmem(const void *s, size_t n, const void *what, size_t n_what) {
        n_steps += n / 32 + 1;
        return memmem(s, n, what, n_what);
}

#undef isalnum
#define strchr count_strchr
#define isalnum count_isalnum
#define memchr count_memchr
#define memmem count_memmem
#include "lib/base/redact.c"
#undef strchr
#undef isalnum
#undef memchr
#undef memmem

#include "lib/base/json_out.h"

#define R "[redacted]"
#define KEY_ID "AKIAIOSFODNN7EXAMPLE"
#define SECRET_40 "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
#define JWT "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"

#define BODY "MIIEpAIBAAKCAQEA0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ+/"
#define PEM_TAIL BODY "\nc2VjcmV0\n-----END RSA PRIVATE KEY-----"
#define PEM "-----BEGIN RSA PRIVATE KEY-----\n" PEM_TAIL

/* clang-format off */
static const struct { const char *text, *want; } cases[] = {
        /* keys by how they begin, with the least that follows */
        { "seen AIza0123456789abcdefghijABCDEFGHIJ here", "seen " R " here" },
        { "seen api_org_0123456789abcdef here", "seen " R " here" },
        { "seen dckr_pat_0123456789abcdef here", "seen " R " here" },
        { "seen gho_0123456789abcdef here", "seen " R " here" },
        { "seen ghr_0123456789abcdef here", "seen " R " here" },
        { "seen ghs_0123456789abcdef here", "seen " R " here" },
        { "seen ghu_0123456789abcdef here", "seen " R " here" },
        { "seen npm_0123456789abcdefghijABCDEFGHIJ here", "seen " R " here" },
        { "seen pypi-0123456789abcdefghijABCDEFGHIJ here", "seen " R " here" },
        { "seen xoxa-0123456789 here", "seen " R " here" },
        { "seen xoxe-0123456789 here", "seen " R " here" },
        { "seen xoxe.0123456789 here", "seen " R " here" },
        { "seen xoxo-0123456789 here", "seen " R " here" },
        { "seen xoxp-0123456789 here", "seen " R " here" },
        { "seen xoxr-0123456789 here", "seen " R " here" },
        { "seen xoxs-0123456789 here", "seen " R " here" },
        /* a name and its value */
        { "--api-key=abc123 --rank 3", "--api-key=" R " --rank 3" },
        { "--token abc123 --rank 3", "--token " R " --rank 3" },
        { "-password abc123", "-password " R },
        { "--password 'two words' x", "--password '" R "' x" },
        { "token: abc123\nrank: 3", "token: " R "\nrank: 3" },
        { "PASSWORD=hunter2 RANK=3", "PASSWORD=" R " RANK=3" },
        { "DB_PASS=hunter2", "DB_PASS=" R },
        { "uid=sa;pwd=hunter2", "uid=sa;pwd=" R },
        { "{\"token\": \"ab c\", \"rank\": 3}", "{\"token\": \"" R "\", \"rank\": 3}" },
        { "{\"secret\" : \"a\\\"b\", \"x\": 1}", "{\"secret\" : \"" R "\", \"x\": 1}" },
        { "{\\\"token\\\": \\\"abc\\\", \\\"x\\\": 1}", "{\\\"token\\\": \\\"" R "\\\", \\\"x\\\": 1}" },
        { "{'apiKey': 'abc', 'n': 1}", "{'apiKey': '" R "', 'n': 1}" },
        { ":client_secret => 'abc'", ":client_secret => '" R "'" },
        { "WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "WANDB_API_KEY=" R },
        { "AWS_SECRET_ACCESS_KEY=" SECRET_40, "AWS_SECRET_ACCESS_KEY=" R },
        { "https://x/y?access_token=abc&z=1", "https://x/y?access_token=" R "&z=1" },
        { "q=a%26token%3Dabc", "q=a%26token%3D" R },
        { "connection.password: hunter2", "connection.password: " R },
        { "AccountKey=abc==;Suffix=x", "AccountKey=" R },
        { "SLACK_WEBHOOK_URL=https://example.org/1", "SLACK_WEBHOOK_URL=" R },
        { "export HF_TOKEN=\"abc\" && run", "export HF_TOKEN=\"" R "\" && run" },
        { "password=", "password=" },
        { "token=unended 'x", "token=" R " 'x" },
        { "secret='never closed\nnext line", "secret='" R "\nnext line" },
        /* headers */
        { "curl -H \"Authorization: Bearer abcdef\" http://h/", "curl -H \"Authorization: " R "\" http://h/" },
        { "Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c\r\nHost: h", "Authorization: " R "\r\nHost: h" },
        { "Cookie: a=b; c=d\nx", "Cookie: " R "\nx" },
        { "x-api-key: abc", "x-api-key: " R },
        { "got Bearer abcdefgh1234 from it", "got Bearer " R " from it" },
        /* URLs */
        { "postgres://me:hunter2@db:5432/x", "postgres://" R "@db:5432/x" },
        { "http://me:p@ss@proxy:3128", "http://" R "@proxy:3128" },
        { "redis://:pa/ss@h", "redis://" R "@h" },
        { "https://0123456789abcdef0123@sentry.example/1", "https://" R "@sentry.example/1" },
        /* the same without a scheme */
        { "MASTER_ADDR=me:hunter2@host", "MASTER_ADDR=" R "@host" },
        { "me:hunter2@host:29500", R "@host:29500" },
        { "--rdzv-endpoint=me:h@nter2@10.0.0.1:29500 --rank 3", "--rdzv-endpoint=" R "@10.0.0.1:29500 --rank 3" },
        { "connect me:hunter2@[fd00::1]:1, again", "connect " R "@[fd00::1]:1, again" },
        { "addr: \"me:hunter2@host/x\"", "addr: \"" R "@host/x\"" },
        { "a@b.example:hunter2@host", R "@host" },
        { "curl -u me:hunter2 http://h", "curl -u " R " http://h" },
        { "https://b.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature=abcd&X-Amz-Security-Token=xyz&v=1",
          "https://b.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature=" R "&X-Amz-Security-Token=" R "&v=1" },
        { "x?X-Amz-Credential=" KEY_ID "%2F2026&a=b", "x?X-Amz-Credential=" R "&a=b" },
        /* known forms, without a name */
        { "found " KEY_ID " there", "found " R " there" },
        { "ASIAIOSFODNN7EXAMPLE", R },
        { KEY_ID " " SECRET_40 " x", R " " R " x" },
        { SECRET_40 "," KEY_ID, R "," R },
        { "login hf_abcdefghijklmnopqrstuvwxyz", "login " R },
        { "line\\nhf_abcdefghijklmnopqrstuvwxyz", "line\\n" R },
        { "ghp_abcdefghijklmnopqrstuvwxyz0123456789", R },
        { "github_pat_11ABCDEFG_abcdefghijklmnop", R },
        { "key sk-proj-abcdefghij0123456789_x!", "key " R "!" },
        { "xoxb-123456789012-abcdef", R },
        { "glpat-abcdefghij0123456789", R },
        { "jwt " JWT " end", "jwt " R " end" },
        { "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", "a\n" R "\nb" },
        { "-----BEGIN PRIVATE KEY-----\nMIIE and no end", R },
        /* a block of PEM is taken out as a whole, whatever it is the value of, and wherever the text begins */
        { "x_private_key=" PEM "\nRANK=3", "x_private_key=" R "\nRANK=3" },
        { "x_private_key=x" PEM " RANK=3", "x_private_key=" R " RANK=3" },
        { "private_key: '" PEM "', rank: 3", "private_key: '" R "', rank: 3" },
        { "api-key: |\n  " PEM "\nrank: 3", "api-key: " R "\n  " R "\nrank: 3" },
        { "x_secret=-----BEGIN RSA PRIVATE KEY-----\nMIIE and no end", "x_secret=" R },
        { "--token " PEM " x", "--token " R " x" },
        { PEM_TAIL "\nb", R "\nb" },
        { "rank 3 began\n" BODY "\n" PEM_TAIL "\nb", "rank 3 began\n" R "\nb" },
        { "xyz\r\n" BODY "\r\nAB==\r\n-----END KEY-----\r\nb", R "\r\nb" },
        { "{\"k\": \"" BODY "\\n" BODY "\\nAB==\\n-----END PRIVATE KEY-----\\n\"}", "{\"k\": \"" R "\\n\"}" },
        { "a short line\n-----END RSA PRIVATE", "a short " R },
        /* strings of languages that say of what kind they are */
        { "{'secret': b'a b', 'n': 1}", "{'secret': b'" R "', 'n': 1}" },
        { "{'secret': u'a b', 'n': 1}", "{'secret': u'" R "', 'n': 1}" },
        { "{'secret': r\"a b\", 'n': 1}", "{'secret': r\"" R "\", 'n': 1}" },
        { "{'secret': Rb'a b', 'n': 1}", "{'secret': Rb'" R "', 'n': 1}" },
        { "HF_TOKEN=$'a b' x", "HF_TOKEN=$'" R "' x" },
        { "secret=bu", "secret=" R },
        { "https://hooks.slack.com/services/T000/B000/abcdef", "https://" R },
        { "https://api.telegram.org/bot123456789:AAFabcdefghijklmnopqrstuvwxyz012345/getMe", "https://" R "/getMe" },
        { "https://discord.com/api/webhooks/123456789012345678/abc-DEF_ghi", "https://" R },
        { "https://discordapp.com/api/webhooks/123456789012345678/abcDEFghi", "https://" R },
        { "use wandb_v1_abcdefghijklmnop_qrst now", "use " R " now" },
        { "nvapi-abcdefghij0123456789_-x", R },
        { "vault hvs.CAESIabcdefghij012345", "vault " R },
        { "xapp-1-A0123456789-abcdef", R },
        { "sk_" "live_abcdefghij0123456789", R },
        { "rk_" "live_abcdefghij0123456789", R },
        { "ya29.a0AfH6SMBabcdefghij-klm_n", R },
        { "SG.abcdefghijklmnop.qrstuvwxyz0123456789", R },
        { "dapi0123456789abcdef0123456789abcdef", R },
        { "dapi0123456789abcdef0123456789abcdef-2", R },
        { "gsk_abcdefghijklmnopqrstuvwxyz012345", R },
        { "xai-abcdefghijklmnopqrstuvwxyz012345", R },
        { "r8_abcdefghijklmnopqrstuvwxyz012345", R },
        { "lin_api_abcdefghijklmnopqrstuvwxyz012345", R },
        { "AGE-SECRET-KEY-1QQPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", R },
        /* programs that are given one without a name */
        { "wandb login 0123456789abcdef0123456789abcdef01234567", "wandb login " R },
        { "wandb login --relogin --host https://w.example/ 0123456789abcdef0123", "wandb login --relogin --host https://w.example/ " R },
        { "mysql -u me -phunter2 db", "mysql -u me -p" R " db" },
        { "/usr/bin/mysqldump -ph2 db; mkdir -pv x", "/usr/bin/mysqldump -p" R " db; mkdir -pv x" },
        { "mysqladmin -ph2 x", "mysqladmin -p" R " x" },
        { "mysqlimport -ph2 x", "mysqlimport -p" R " x" },
        { "mariadb -ph2 x", "mariadb -p" R " x" },
        { "mariadb-dump -ph2 x", "mariadb-dump -p" R " x" },
        { "sshpass -p hunter2 ssh -p 22 h", "sshpass -p " R " ssh -p 22 h" },
        { "sshpass -p 'hunter 2' ssh h", "sshpass -p '" R "' ssh h" },
        { "sshpass -phunter2 ssh h", "sshpass -p" R " ssh h" },
        { "sshpass -p mysql ssh h", "sshpass -p " R " ssh h" },
        { "docker login -u me -p hunter2 reg", "docker login -u me -p " R " reg" },
        { "podman login -p hunter2 reg", "podman login -p " R " reg" },
        { "nerdctl login -p hunter2 reg", "nerdctl login -p " R " reg" },
        { "helm registry login -p hunter2 reg", "helm registry login -p " R " reg" },
        { "curl -ume:hunter2 http://h", "curl -u" R " http://h" },
        { "curl 'http://h/?a=b&c=d' -ume:hunter2", "curl 'http://h/?a=b&c=d' -u" R },
        { "[\"mysql\", \"-phunter2\"]", "[\"mysql\", \"-p" R "\"]" },
        { "htpasswd -b /etc/htpasswd me hunter2", "htpasswd -b /etc/htpasswd me " R },
        { "htpasswd -nbB me hunter2 && run me hunter2", "htpasswd -nbB me " R " && run me hunter2" },
        /* what is taken out stays taken out */
        { "token=" R " x", "token=" R " x" },
};

static const char *const plain[] = {
        "NEURON_CC_FLAGS=--model-type transformer --optlevel=2",
        "NEURON_RT_ROOT_COMM_ID=10.0.0.1:41000",
        "python /home/monkey/train.py --master-port 41000 --rank 3",
        "/monkey/keys/keyboard.txt",
        "torchrun --nnodes 2 --rdzv-endpoint=10.0.0.1:29500 --rdzv_id job-17",
        "/cache/MODULE_12345678901234567890+abcdef01/model.neff",
        "dt-20260527-051233-cid-d99e36ea74c263ca",
        "i-0123456789abcdef0-nd3-nc4-pid-7-tid-8-lid-1",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "TOKENIZERS_PARALLELISM=false", "tokenizer=llama", "--tokenizer-path /x/y",
        "max_tokens=4096, batch=8", "{\"num_tokens\": 128}", "--use-auth-token True",
        "PWD=/home/x", "OLDPWD=/", "author: somebody", "the token was refused",
        "cache_key=abc", "sort_key: name", "job_key=torchrun", "key: value", "std::token::type",
        "http://host:8080/path@x", "ssh://git@host/repo", "git@host:repo", "docker run -u 1000:1000 x",
        "neuron:2.20@sha256:9f86d081", "reg.example:5000/neuron:2.20@sha256:9f86d081", "libc.so.6:read@@GLIBC_2.2.5", "std::vector@plt",
        "host:29500@0", "scp x me@host:y", "mailto:me@host", "srun -p trn2 x", "mkdir -p x", "a:b@", "nd0:nc0 @ 3", "pkg:pypi/x@1.2",
        "task-scheduler-of-the-whole-cluster", "desk-abcdefghijklmnopqrstuvwxyz01", "AKIAshort", "hf_hub",
        "wandb login failed", "mysql -u me -p db", "docker run -p 8080:80 x", "docker login reg", "curl -u1000:1000 x",
        "htpasswd /etc/htpasswd me", "dapi0123", "SG.1", "r8_x", "a mysql server; cp -px y", "sshpass\ncp -p x y",
        "eyJshort.x", "SLURM_JOB_ID=17", "nd0:nc0 DMA TX engine 0", "compass=3", "bearer of news",
        "https://example.org/a?b=c&d=e#f", "-----BEGINNING-----", "-----END of story-----", "at the-----ENDING-----", "",
};
/* clang-format on */

static void assert_redacted(const char *text, size_t n, const char *want) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add(&b, "");
        redact_text(&b, text, n);
        assert_int_equal(strbuf_error(&b), 0);
        assert_string_equal(b.text, want);
}

static void secrets_go(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_redacted(cases[i].text, strlen(cases[i].text), cases[i].want);
}

static void what_is_no_secret_stays(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(plain); i++)
                assert_redacted(plain[i], strlen(plain[i]), plain[i]);
}

static void doing_it_twice_changes_nothing(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_redacted(cases[i].want, strlen(cases[i].want), cases[i].want);
}

static void every_beginning_of_a_text_is_read_within_its_bounds(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (size_t n = 0; n <= strlen(cases[i].text); n++) {
                        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                        char *cut = malloc(MAX(n, (size_t)1)); /* a sanitizer sees its end */
                        assert_non_null(cut);
                        memcpy(cut, cases[i].text, n);
                        redact_text(&b, cut, n);
                        assert_int_equal(strbuf_error(&b), 0);
                        free(cut);
                }
}

static void bytes_of_any_kind_pass(void **state) {
        static const char text[] = "a\0token=x\0\xff\xfe\x80 \xc3\xa4 RANK=3";
        static const char want[] = "a\0token=" R "\0\xff\xfe\x80 \xc3\xa4 RANK=3";
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        redact_text(&b, text, sizeof text - 1);
        assert_int_equal(b.n, sizeof want - 1);
        assert_memory_equal(b.text, want, sizeof want - 1);
}

static void a_member_of_an_object_has_no_secret(void **state) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        redact_member(&b, "a", "password=hunter22 \"stays\"", 25);
        redact_member(&b, "b", "", 0);
        json_out_end_object(&b);
        assert_string_equal(b.text, "{\"a\":\"password=[redacted] \\\"stays\\\"\",\"b\":\"\"}");
        strbuf_done(&b);
}

static void names_are_distinguished(void **state) {
        static const char *const secret[] = {
                "HF_TOKEN",
                "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN",
                "WANDB_API_KEY",
                "api-key",
                "apiKey",
                "ssh_key",
                "SecretAccessKey",
                "DB_PASSWD",
                "dbPassword",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "basic_auth",
                "sessionCookie",
                "X-Amz-Signature",
                "MYSQL_PWD",
                "passphrase",
                "SOME.PRIVATE.KEY",
                "encryptionKey",
        };
        static const char *const harmless[] = {
                "RANK",     "NEURON_CC_FLAGS", "MASTER_PORT", "monkey",
                "KEYBOARD", "TOKENIZER",       "PWD",         "author",
                "compass",  "cache_key",       "key",         "",
                "passing",  "SLURM_JOB_ID",    "bypass",      "FI_EFA_FORK_SAFE",
        };
        for (size_t i = 0; i < ELEMENTSOF(secret); i++)
                if (!redact_name_is_secret(secret[i]))
                        fail_msg("'%s' is taken for harmless", secret[i]);
        for (size_t i = 0; i < ELEMENTSOF(harmless); i++)
                if (redact_name_is_secret(harmless[i]))
                        fail_msg("'%s' is taken for a secret", harmless[i]);
        char longest[5001];
        memset(longest, 'x', sizeof longest);
        memcpy(longest + sizeof longest - 7, "_TOKEN", 7);
        assert_true(redact_name_is_secret(longest));
        for (size_t i = 0; i + 1 < sizeof longest; i += 2)
                longest[i] = '_'; /* thousands of words */
        longest[sizeof longest - 7] = '\0';
        assert_false(redact_name_is_secret(longest));
}

static void assert_cmdline(const char *data, size_t n, const char *want) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_array(&b, NULL);
        redact_cmdline(&b, data, n);
        json_out_end_array(&b);
        assert_int_equal(strbuf_error(&b), 0);
        assert_string_equal(b.text, want);
}

#define CMDLINE(data, want) assert_cmdline(data, sizeof(data), want)

static void a_command_line_loses_its_secrets_argument_by_argument(void **state) {
        CMDLINE("python\0train.py\0--token\0a b c\0--rank\0003",
                "[\"python\",\"train.py\",\"--token\",\"" R "\",\"--rank\",\"3\"]");
        CMDLINE("x\0--password=a b c\0y", "[\"x\",\"--password=" R "\",\"y\"]");
        CMDLINE("x\0--use-auth-token\0--rank\0003",
                "[\"x\",\"--use-auth-token\",\"--rank\",\"3\"]");
        CMDLINE("curl\0-u\0me:hunter2", "[\"curl\",\"-u\",\"" R "\"]");
        CMDLINE("/usr/bin/mysql\0-phunter2\0db", "[\"/usr/bin/mysql\",\"-p" R "\",\"db\"]");
        CMDLINE("sshpass\0-p\0a b\0ssh\0-p\00022",
                "[\"sshpass\",\"-p\",\"" R "\",\"ssh\",\"-p\",\"22\"]");
        CMDLINE("wandb\0login\0000123456789abcdef0123", "[\"wandb\",\"login\",\"" R "\"]");
        CMDLINE("docker\0-u\0001:1", "[\"docker\",\"-u\",\"1:1\"]");
        CMDLINE("x\0--id\0" KEY_ID "\0--what\0" SECRET_40,
                "[\"x\",\"--id\",\"" R "\",\"--what\",\"" R "\"]");
        CMDLINE("x\0--max-tokens\0004096", "[\"x\",\"--max-tokens\",\"4096\"]");
        CMDLINE("x\0\0y", "[\"x\",\"\",\"y\"]");
        assert_cmdline("x\0--token\0cut short", 19, "[\"x\",\"--token\",\"" R "\"]");
        assert_cmdline("", 0, "[]");
        CMDLINE("\xff\"\\\n", "[\"\\\\xff\\\"\\\\\\u000a\"]");
}

static uint64_t steps_of(const char *begin, const char *seed, size_t n) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *text = malloc(n);
        size_t n_seed = strlen(seed), n_begin = strlen(begin);
        assert_non_null(text);
        for (size_t k = 0; k < n; k++)
                text[k] = k < n_begin ? begin[k] : seed[(k - n_begin) % n_seed];
        n_steps = 0;
        redact_text(&b, text, n);
        assert_int_equal(strbuf_error(&b), 0);
        return n_steps;
}

#define STEPS_A_BYTE 120
#define BYTES 8192 /* many times what a lookahead is bounded to */

static void assert_linear(const char *begin, const char *seed) {
        uint64_t one = steps_of(begin, seed, BYTES), two = steps_of(begin, seed, 2 * BYTES);
        if (one > (uint64_t)STEPS_A_BYTE * BYTES || two >= 3 * one + BYTES)
                fail_msg("'%s%s...': %llu steps for %d bytes, %llu for twice as many", begin, seed,
                         (unsigned long long)one, BYTES, (unsigned long long)two);
}

/* Text that is made to be looked at again and again. */
static void hostile_text_needs_linear_work(void **state) {
        static const char *const seeds[] = {
                "eyJ-",
                "://a:",
                "a:b,",
                "a:,",
                "a:@,",
                "a:,a:,a:,a:,a:,a:,a:,a:,@,",
                "=a:@",
                "aaaaaaa ",
                "-----BEGIN ",
                "token=",
                "-u=/",
                "-u=/-u=/-u=/-u=/-u=/-u=/:1 ",
                ("cookie:" R),
                "AKIA",
                "sk-",
                "token='",
                "\\\"",
                "a.b-c_",
                "bearer ",
                "token : ",
                "://@:/",
                "://:1x////////////////////////////////",
                "%3D",
                "-----END ",
                "AB\n",
                "x\\n-----END A",
                "key=b-----BEGIN ",
                "-----END A-----\\",
                "x_key: ",
                "--password ",
                "[redacted]",
                "mysql -p",
                "wandb login ",
                "'a \"b `c ",
                "curl 'a -u",
                "(a",
                "curl (-uX",
                "htpasswd (-x",
        };
        static const char alphabet[] = "a1-_./:@=?&#(,;'\"`\\ \n%uE";
        for (size_t i = 0; i < ELEMENTSOF(seeds); i++)
                assert_linear("", seeds[i]);
        for (size_t i = 0; alphabet[i]; i++)
                for (size_t k = 0; alphabet[k]; k++)
                        assert_linear("", (char[]){ alphabet[i], alphabet[k], '\0' });
        for (size_t i = 0; i < ELEMENTSOF(command_forms); i++) {
                char begin[64];
                (void)snprintf(begin, sizeof begin, "%s %s ", command_forms[i].program,
                               command_forms[i].word ? command_forms[i].word : "");
                assert_linear(begin, "(-x");
                assert_linear(begin, (char[]){ '(', '-', command_forms[i].option, 'x', '\0' });
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(secrets_go),
                cmocka_unit_test(what_is_no_secret_stays),
                cmocka_unit_test(doing_it_twice_changes_nothing),
                cmocka_unit_test(every_beginning_of_a_text_is_read_within_its_bounds),
                cmocka_unit_test(bytes_of_any_kind_pass),
                cmocka_unit_test(a_member_of_an_object_has_no_secret),
                cmocka_unit_test(names_are_distinguished),
                cmocka_unit_test(a_command_line_loses_its_secrets_argument_by_argument),
                cmocka_unit_test(hostile_text_needs_linear_work),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
