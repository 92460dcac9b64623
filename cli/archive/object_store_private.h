/* What the two kinds of store share. Nobody else includes this. */
#pragma once

#include "cli/archive/object_store.h"
#include "cli/cli.h"

typedef struct ObjectStoreKind {
        int (*list)(ObjectStore *s, const ObjectListOrder *order);
        int (*stat)(ObjectStore *s, const char *key, uint64_t *ret_bytes);
        int (*read)(ObjectStore *s, const char *key, size_t max_bytes, ObjectText *ret);
        int (*read_heads)(ObjectStore *s, ObjectHead *heads, size_t n);
        int (*reader)(ObjectStore *s, const ObjectRange *range, ObjectReader **ret);
        ObjectStore *(*free)(ObjectStore *s);
} ObjectStoreKind;

struct ObjectStore { /* the first member of both */
        const ObjectStoreKind *kind;
        char *url_prefix; /* `s3://bucket/`, "" */
        char *error;
};

/** Notes the sentence. @return `outcome` */
int object_store_fail(ObjectStore *s, int outcome, const char *fmt, ...) _printf_(3, 4);

/* object_store_dir.c */
int object_store_dir_new(ObjectStore **ret);
/* object_store_s3.c; as object_store_open() */
int object_store_s3_new(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                        const S3Options *options);
