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
        { "api-key: |\n  " PEM "\nrank: 3", "api-key: |\n  " R "\nrank: 3" },
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
        { "redis-cli -h db -a hunter2 ping", "redis-cli -h db -a " R " ping" },
        { "/usr/bin/redis-cli -ahunter2 ping", "/usr/bin/redis-cli -a" R " ping" },
        { "valkey-cli -a 'hunter 2' ping", "valkey-cli -a '" R "' ping" },
        { "ldapsearch -x -D cn=me -w hunter2 -b dc=x", "ldapsearch -x -D cn=me -w " R " -b dc=x" },
        { "ldapmodify -w 'a b' -f x.ldif", "ldapmodify -w '" R "' -f x.ldif" },
        { "ldapadd -whunter2 -f x.ldif", "ldapadd -w" R " -f x.ldif" },
        { "zip -P hunter2 a.zip b", "zip -P " R " a.zip b" },
        { "zip -r -Phunter2 a.zip b", "zip -r -P" R " a.zip b" },
        { "unzip -P \"hunter 2\" a.zip", "unzip -P \"" R "\" a.zip" },
        { "7z x -phunter2 a.7z", "7z x -p" R " a.7z" },
        { "mongosh -u me -p hunter2 db", "mongosh -u me -p " R " db" },
        { "ipmitool -H h -U me -P hunter2 sel", "ipmitool -H h -U me -P " R " sel" },
        { "twine upload -u me -p hunter2 x.whl", "twine upload -u me -p " R " x.whl" },
        { "aws configure set aws_secret_access_key hunter2", "aws configure set aws_secret_access_key " R },
        { "aws configure set aws_session_token 'hunter2' --profile x", "aws configure set aws_session_token '" R "' --profile x" },
        { "/opt/aws configure set profile.x.aws_secret_access_key hunter2; ls", "/opt/aws configure set profile.x.aws_secret_access_key " R "; ls" },
        { "npm set //registry.npmjs.org/:_authToken hunter2", "npm set //registry.npmjs.org/:_authToken " R },
        { "poetry config pypi-token.pypi hunter2", "poetry config pypi-token.pypi " R },
        { "openssl pkcs12 -in a -passin pass:hunter2 -out b", "openssl pkcs12 -in a -passin " R " -out b" },
        { "openssl rsa -passout 'pass:a b' -in x", "openssl rsa -passout '" R "' -in x" },
        { "openssl enc -aes-256-cbc -pass pass:hunter2", "openssl enc -aes-256-cbc -pass " R },
        { "keytool -list -storepass hunter2 -keystore x", "keytool -list -storepass " R " -keystore x" },
        { "plink -pw hunter2 me@host", "plink -pw " R " me@host" },
        { "kubectl create secret generic x --from-literal=k=hunter2 -n y", "kubectl create secret generic x --from-literal=" R " -n y" },
        { "kubectl create secret generic x --from-literal k=hunter2", "kubectl create secret generic x --from-literal " R },
        { "kubectl create secret generic x --from-literal='k=a b'", "kubectl create secret generic x --from-literal='" R "'" },
        /* files that hold them */
        { "machine h.example login me password hunter2", "machine h.example login me password " R },
        { "machine h\n  login me\n  password hunter2\nmachine i", "machine h\n  login me\n  password " R "\nmachine i" },
        { "default login me account x password hunter2", "default login me account x password " R },
        { "machine h password hunter2", "machine h password " R },
        { "db.example:5432:prod:me:hunter2", "db.example:5432:prod:me:" R },
        { "*:*:*:me:hun:ter2\nnext", "*:*:*:me:" R "\nnext" },
        { "x\nlocalhost:6432:a:b:hunter2", "x\nlocalhost:6432:a:b:" R },
        { "    client-key-data: LS0tLS1CRUdJTg==\n", "    client-key-data: " R "\n" },
        { "client-key-data: \"LS0tLS1CRUdJTg==\"", "client-key-data: \"" R "\"" },
        { "{\"client-key-data\":\"LS0t\"}", "{\"client-key-data\":\"" R "\"}" },
        { "user: {token: hunter2}\nname: x", "user: {token: " R "\nname: x" },
        { "{\"auths\": {\"reg\": {\"auth\": \"bWU6aHVudGVyMg==\"}}}", "{\"auths\": {\"reg\": {\"auth\": \"" R "\"}}}" },
        /* on the next line */
        { "password:\n  hunter2\nrank: 3", "password:\n  " R "\nrank: 3" },
        { "  secret: |-\n    one\n    two\n  rank: 3", "  secret: |-\n    " R "\n  rank: 3" },
        { "passwords:\n  - one\n  - two\nrank: 3", "passwords:\n  " R "\nrank: 3" },
        { "{\"token\":\n\"hunter2\", \"n\": 1}", "{\"token\":\n\"" R "\", \"n\": 1}" },
        { "train --api-key \\\n  hunter2 --rank 3", "train --api-key \\\n  " R " --rank 3" },
        { "password: >\r\n  a b\r\nrank: 3", "password: >\r\n  " R "\nrank: 3" },
        /* lists, XML, a name that is itself a value */
        { "{\"passwords\": [\"one\", \"t]wo\"], \"n\": 1}", "{\"passwords\": [" R "], \"n\": 1}" },
        { "tokens=['one', 'two'] rank=3", "tokens=[" R "] rank=3" },
        { "\"secret\": [\n  \"one\",\n  \"two\"\n]", "\"secret\": [" R "]" },
        { "api_keys = (\"one\", \"two\") # x", "api_keys = (" R ") # x" },
        { "<password>hunter2</password><user>me</user>", "<password>" R "</password><user>me</user>" },
        { "<ns:apiToken>hunter2</ns:apiToken>", "<ns:apiToken>" R "</ns:apiToken>" },
        { "<add key=\"password\" value=\"hunter2\"/>", "<add key=\"password\" value=\"" R "\"/>" },
        { "<param name='db.password' value='a b'/>", "<param name='db.password' value='" R "'/>" },
        { "{\"name\": \"DB_PASSWORD\", \"value\": \"hunter2\"}", "{\"name\": \"DB_PASSWORD\", \"value\": \"" R "\"}" },
        { "- name: HF_TOKEN\n  value: hunter2\n- name: X", "- name: HF_TOKEN\n  value: " R "\n- name: X" },
        { "{\"password\": {\"value\": \"hunter2\"}}", "{\"password\": {\"value\": \"" R "\"}}" },
        /* words that also name evidence: what looks like a secret goes */
        { "sig=Zm9vYmFyYmF6cXV4MTIzNDU2", "sig=" R },
        { "https://x/y?sig=abcdef&z=1", "https://x/y?sig=" R "&z=1" },
        { "signature: 9f86d081884c7d659a2feaa0c55ad015", "signature: " R },
        { "session_cookie=abcdefgh1234", "session_cookie=" R },
        { "token=123456789012", "token=" R },
        { "next_page_token=Cg1hYmM", "next_page_token=" R },
        { "proxy_auth=hunter2", "proxy_auth=" R },
        { "auth_string: hunter2", "auth_string: " R },
        /* what is taken out stays taken out */
        { "token=" R " x", "token=" R " x" },
};

/* Whole keys of each form, made up, in two pieces so that no scanner of a source tree mistakes them. */
#define H32 "0123456789abcdef0123456789abcdef"
#define A32 "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF"
static const char *const keys[] = {
        "IQoJb3Jp" "Z2luX2VjEHoaCXVzLWVhc3QtMSJHMEUCIQ" A32 A32 "/+x==",
        "FwoGZXIv" "YXdzEBYaDH" A32 A32 "==", "FQoGZXIv" "YXdzEBYaDH" A32 A32,
        "ABSK" "QmVkcm9ja0FQSUtleS1" A32 A32 A32 "==", "bedrock-api-" "key-YmVkcm9jay5hbWF6b25hd3MuY29t" A32,
        "ABIA" "IOSFODNN7EXAMPLE", "pplx-" A32 "aB3dE6gH9jK2mN5p", "lsv2_" "pt_" H32 "_0123456789", "tvly-" "dev-" A32,
        "csk-" "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijkl", "pnu_" A32 "abcd",
        "dop_" "v1_" H32 H32, "doo_" "v1_" H32 H32, "dor_" "v1_" H32 H32, "dp.pt" "." A32 "abcdefghijk",
        "dp.st" ".prd_x." A32, "glsa_" A32 "_0a1b2c3d", "glc_" "eyJvIjoiMTIzNDU2Iiw" A32 "==",
        "hvb." "AAAAAQ" A32 A32, "hvr." "CAESI" A32, "pscale_" "pw_" A32 "_x.y", "pscale_" "tkn_" A32, "pscale_" "oauth_" A32,
        "pul-" H32 "01234567", "rubygems_" H32 "0123456789abcdef", "shpat_" H32, "shpca_" H32, "shppa_" H32, "shpss_" H32,
        "whsec_" A32, "sk_te" "st_" A32, "rk_te" "st_" A32, "NRAK-" "ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "NRII-" A32,
        "sntrys_" "eyJpYXQiOjE3" A32 A32 "_" A32 "abcdefghijk", "sntryu_" H32 H32, "PMAK-" "0123456789abcdef01234567-" H32 "ab",
        "ntn_" "12345678901" A32 "abc", "ATATT3" "xFfGF0" A32 A32 "=1A2B3C4D", "ATCTT3" "xFfGN0" A32 A32, "figd_" A32 "_abc-d",
        "sbp_" H32 "01234567", "tskey-" "auth-kAbCdEfGhI2CNTRL-" A32, "AKCp" A32 A32 "abcde", "glptt-" H32 "01234567",
        "gldt-" "aB3dE6gH9jK2mN5pQ8sT", "glrt-" "t1_aB3dE6gH9jK2mN5pQ8sT", "glft-" "aB3dE6gH9jK2mN5pQ8sT",
        "glcbt-" "64_aB3dE6gH9jK2mN5pQ8sT", "glsoat-" "aB3dE6gH9jK2mN5pQ8sT", "glagent-" A32 "aB3dE6gH9jK2mN5pQ8",
        "GOCSPX-" "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7b", "xkeysib-" H32 H32 "-aB3dE6gH9jK2mN5p", "xsmtpsib-" H32 H32 "-aB3dE6gH9jK2mN5p",
        "ops_" "eyJzaWduSW5BZGRyZXNzIjoi" A32 A32 "==", "dckr_" "oat_" A32, "HRKU-" "AA" A32 A32, "fm2_" A32 A32 "==",
        "sha256~" A32 "abcdefghijk", "dt0c01" ".ABCDEFGHIJKLMNOPQRSTUVWX." A32 A32, "LTAI" "5tabcdefghijklmnopqrst",
        "sgp_" "local_" H32 "01234567", "phx_" A32,
        "hooks.slack.com/" "workflows/T000/A000/123/abcdef", "example.webhook.office.com/webhookb2/" H32 "@" H32,
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
        "redis-cli -h db ping", "redis-cli --all-databases", "ldapsearch -x -W -b dc=x", "zip -r a.zip b", "unzip -p a.zip",
        "7z x a.7z -o/x", "aws configure set region us-east-1", "aws configure list", "aws s3 cp a s3://b/token c",
        "openssl rsa -passin env:PW -in x", "openssl rsa -passin file:/run/pw", "openssl rsa -passin stdin", "--pass fd:3",
        "git config user.name x", "poetry config virtualenvs.in-project true", "--from-file=a=b", "npm set audit false",
        "the login page password reset", "machine 3 failed password check", "login me password", "default password policy",
        "train.py:543:main:INFO:starting", "10.0.0.1:5432 is up", "10:5432:1:2", "db:5432:prod:me:", "a.c:5432:7:error:x",
        "certificate-authority-data: LS0tLS1CRUdJTg==", "client-certificate-data: LS0tLS1CRUdJTg==",
        "token:\n  name: x\n  kind: y", "tokens:\nrank: 3", "token: {", "\"secrets\": [{", "num_tokens:\n  128\n",
        "<tokens>128</tokens>", "<user>me</user>", "<add key=\"user\" value=\"me\"/>", "{\"name\": \"RANK\", \"value\": \"3\"}",
        "{\"token_ids\": [1, 2, 30522]}", "tokens=[12, 13]", "(token)", "std::pair<token,int>",
        "sig=11", "sig=SIGSEGV", "signal: 11, sig: 11)", "signature: 3f2a", "signature: 0x3f2a", "signature=nrt_execute()",
        "cookie=0x1d2c", "cookie: 0x1d2c", "cookie=17", "sig=0xdeadbeefcafe",
        "tokens_per_second=1234.5", "tokens_per_second: 1.2e+05", "next_token_loss=1.2", "token_throughput=12.3k", "tokens=1,234,567",
        "tokens: 12/34", "token_accuracy=98.7%", "{\"tokens_per_sec\": 0.123456789012345}", "token_latency=5ms", "token_loss=nan",
        "pad_token=[PAD]", "token=[MASK],", "eos_token='<|endoftext|>'", "bos_token: <s>", "token: </s>", "pad_token=!",
        "signature_version=s3v4", "token_type=bearer", "AWS_WEB_IDENTITY_TOKEN_FILE=/run/x/y", "if token == next_token:",
        "SSH_AUTH_SOCK=/tmp/ssh-x/agent.1", "XAUTHORITY=/run/user/1/xauth", "cookie: 17, flags 3",
        "AuthType=auth/munge", "(auth:SIMPLE)", "auth.example.com:443", "auth_fail: 3 tries", "auth=publickey",
        "akka.tcp://sparkExecutorActorSystem@node-07:55904", "ProcessThread(sid:1 cport:-1)::PrepRequestProcessor@476",
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

/* The text that is made of each key in each surrounding, and the surrounding with R in its place.
 */
static void assert_key_goes(const char *key, const char *before, const char *after) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT, want = STRBUF_INIT;
        strbuf_addf(&text, "%s%s%s", before, key, after);
        strbuf_addf(&want, "%s" R "%s", before, after);
        assert_int_equal(strbuf_error(&text), 0);
        assert_redacted(text.text, text.n, want.text);
}

static void keys_of_each_form_go_wherever_they_stand(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(keys); i++) {
                bool is_below_host = strstr(keys[i], ".office.com/");
                const char *key = is_below_host ? strstr(keys[i], "webhook.") : keys[i];
                assert_key_goes(key, "", "");
                assert_key_goes(key, "rank 3 uses ", " now");
                assert_key_goes(key, "{\"x\": \"", "\", \"rank\": 3}");
                assert_key_goes(key, "export X='", "'; train");
                assert_key_goes(key, "line\\n", "\n");
                assert_key_goes(key, "(", ")");
        }
}

/* The beginning alone, one byte too few, and the form in the middle of a word. */
static void what_only_begins_like_a_key_stays(void **state) {
        for (size_t i = 0; i < ELEMENTSOF(key_forms); i++) {
                const struct KeyForm *f = &key_forms[i];
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                strbuf_addf(&b, "see %s here", f->prefix);
                assert_redacted(b.text, b.n, b.text);
                strbuf_clear(&b);
                strbuf_addf(&b, "see x%s", f->prefix);
                for (size_t k = 0; k < f->min; k++)
                        strbuf_add_n(&b, &f->chars[k % 6], 1);
                if (!strpbrk(f->prefix, "./"))
                        assert_redacted(b.text, b.n, b.text);
                strbuf_clear(&b);
                strbuf_addf(&b, "see %s", f->prefix);
                for (size_t k = 0; k + 1 < f->min; k++)
                        strbuf_add_n(&b, &f->chars[k % 6], 1);
                assert_redacted(b.text, b.n, b.text);
        }
}

/* Lines of logs of the runtime, the kernel, torch and Slurm, none with a secret. */
static void lines_of_evidence_stay(void **state) {
        _cleanup_(strbuf_done) StrBuf path = STRBUF_INIT;
        const char *srcdir = getenv("srcdir");
        char *line = NULL;
        size_t size = 0, n_lines = 0;
        ssize_t n;
        strbuf_addf(&path, "%s/tests/lib/base/evidence_lines.txt", srcdir ? srcdir : ".");
        FILE *file = fopen(path.text, "re");
        assert_non_null(file);
        for (; (n = getline(&line, &size, file)) > 0; n_lines++) {
                if (line[n - 1] == '\n')
                        line[--n] = '\0';
                assert_redacted(line, (size_t)n, line);
        }
        free(line);
        (void)fclose(file);
        assert_true(n_lines >= 200);
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
        CMDLINE("redis-cli\0-a\0a b\0ping", "[\"redis-cli\",\"-a\",\"" R "\",\"ping\"]");
        CMDLINE("openssl\0rsa\0-passin\0pass:a b", "[\"openssl\",\"rsa\",\"-passin\",\"" R "\"]");
        CMDLINE("openssl\0rsa\0-passin\0env:PW", "[\"openssl\",\"rsa\",\"-passin\",\"env:PW\"]");
        CMDLINE("aws\0configure\0set\0aws_session_token\0a b",
                "[\"aws\",\"configure\",\"set\",\"aws_session_token\",\"" R "\"]");
        CMDLINE("kubectl\0--from-literal=k=a b", "[\"kubectl\",\"--from-literal=" R "\"]");
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
                "token=[\"",
                "token=['a'",
                "password:\n ",
                "password: |\n  a",
                "machine a password ",
                "login a password\n",
                "a:5432:b:",
                "*:*:",
                "\"token\", ,,,{",
                "token: value",
                "<token>",
                "aws configure set token ",
                "sig=0123456789abcdef",
                "token=1.1.1.1.",
                "IQoJb3JpZ2lu",
                "cookie:1 ",
                "cookie: 0x1,",
                "token:\n 1\n",
                "token=['a:",
                "token==",
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
                cmocka_unit_test(keys_of_each_form_go_wherever_they_stand),
                cmocka_unit_test(what_only_begins_like_a_key_stays),
                cmocka_unit_test(what_is_no_secret_stays),
                cmocka_unit_test(lines_of_evidence_stay),
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
