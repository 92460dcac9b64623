#include "uploaders/aws/credentials_files.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/path.h"
#include "uploaders/aws/credentials_env.h"
#include "uploaders/aws/credentials_secret.h"

/* @return the caller's, NULL when there is none */
static char *find_home(char *const *environment, const char *home) {
        struct passwd pw, *found = NULL;
        char buf[4096];

        if (!home || !*home)
                home = credentials_env_get(environment, "HOME");
        if (!home && getpwuid_r(geteuid(), &pw, buf, sizeof buf, &found) == 0 && found)
                home = found->pw_dir;
        return home && *home ? strdup(home) : NULL;
}

/* @param told  as the environment spells it, with `~/` for the home; NULL = the usual name below the home
 * @return the caller's, NULL when there is no home (or no memory) */
static char *make_path(const char *told, const char *usual, const char *home) {
        if (told && strncmp(told, "~/", 2) != 0)
                return strdup(told);
        if (!home)
                return NULL;
        return path_join(home, told ? told + 2 : usual);
}

typedef struct Paths { /* owned; NULL when there is no home to look in */
        char *config, *credentials;
} Paths;

static Paths make_paths(char *const *environment, const char *home) {
        _cleanup_free_ char *at = find_home(environment, home);

        return (Paths){
                .config = make_path(credentials_env_get(environment, "AWS_CONFIG_FILE"),
                                    ".aws/config", at),
                .credentials =
                        make_path(credentials_env_get(environment, "AWS_SHARED_CREDENTIALS_FILE"),
                                  ".aws/credentials", at),
        };
}

static int read_file(CredentialsFile *f, AwsProfileFormat format, char *path /* taken */) {
        size_t n;

        *f = (CredentialsFile){ .path = path, .error = -ENOENT };
        if (!path)
                return 0;
        f->error = credentials_secret_read(path, AWS_PROFILE_MAX_BYTES, &f->text, &n);
        if (f->error == 0)
                f->error = aws_profile_parse(&f->parsed, format, f->text, n);
        return f->error == -ENOMEM ? -ENOMEM : 0;
}

int credentials_files_read(CredentialsFiles *ret, char *const *environment, const char *home) {
        Paths paths = make_paths(environment, home);
        CredentialsFiles files = { 0 };

        int r = read_file(&files.config, AWS_PROFILE_CONFIG, paths.config);
        if (r == 0)
                r = read_file(&files.credentials, AWS_PROFILE_CREDENTIALS, paths.credentials);
        else
                free(paths.credentials);
        if (r < 0)
                credentials_files_done(&files);
        else
                *ret = files;
        return r;
}

static void file_done(CredentialsFile *f) {
        aws_profile_done(&f->parsed);
        credentials_secret_free(f->text);
        free(f->path);
        *f = (CredentialsFile){ 0 };
}

void credentials_files_done(CredentialsFiles *f) {
        file_done(&f->config);
        file_done(&f->credentials);
}

static CredentialsFileLook look_at(const char *path) {
        struct stat st;

        if (!path || stat(path, &st) < 0)
                return (CredentialsFileLook){ 0 };
        return (CredentialsFileLook){
                .device = st.st_dev,
                .inode = st.st_ino,
                .bytes = (uint64_t)st.st_size,
                .mtime_nsec = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec,
                .ctime_nsec = st.st_ctim.tv_sec * INT64_C(1000000000) + st.st_ctim.tv_nsec,
        };
}

CredentialsFilesLook credentials_files_look(char *const *environment, const char *home) {
        Paths paths = make_paths(environment, home);
        CredentialsFilesLook look = {
                .config = look_at(paths.config),
                .credentials = look_at(paths.credentials),
        };

        free(paths.config);
        free(paths.credentials);
        return look;
}

static bool looks_same(const CredentialsFileLook *a, const CredentialsFileLook *b) {
        return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
               a->mtime_nsec == b->mtime_nsec && a->ctime_nsec == b->ctime_nsec;
}

bool credentials_files_look_same(const CredentialsFilesLook *a, const CredentialsFilesLook *b) {
        return looks_same(&a->config, &b->config) && looks_same(&a->credentials, &b->credentials);
}

const char *credentials_files_get(const CredentialsFiles *f, const char *profile, const char *key) {
        const char *value = aws_profile_get(&f->credentials.parsed, profile, key);

        return value ? value : aws_profile_get(&f->config.parsed, profile, key);
}

const char *credentials_files_profile(char *const *environment, const char *wanted) {
        if (wanted && *wanted)
                return wanted;
        const char *told = credentials_env_get(environment, "AWS_PROFILE");
        return told ? told : "default";
}

const char *credentials_files_region(const CredentialsFiles *f, char *const *environment,
                                     const char *profile) {
        const char *region = credentials_env_get(environment, "AWS_REGION");

        if (!region)
                region = credentials_env_get(environment, "AWS_DEFAULT_REGION");
        return region ? region : credentials_files_get(f, profile, "region");
}
