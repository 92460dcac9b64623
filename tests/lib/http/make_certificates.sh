#!/bin/sh
# Makes a CA and three certificates of it in a directory: good.pem and expired.pem for 127.0.0.1,
# other.pem for another host. usage: make_certificates.sh DIRECTORY
set -eu
cd "$1"
subject() {
    printf '[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=%s\n' "$1"
}
subject 'test CA' > ca.cnf
printf '%s\n' '[x]' basicConstraints=critical,CA:true keyUsage=critical,keyCertSign,cRLSign \
    subjectKeyIdentifier=hash >> ca.cnf
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -config ca.cnf \
    -extensions x -keyout ca.key -out ca.pem

# certificate NAME SUBJECT_ALTERNATIVE_NAME DAYS
certificate() {
    subject "$1" > "$1.cnf"
    printf 'subjectAltName=%s\nbasicConstraints=CA:false\n' "$2" > "$1.ext"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config "$1.cnf" \
        -keyout "$1.key" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$3" -extfile \
        "$1.ext" -out "$1.crt"
    cat "$1.crt" "$1.key" > "$1.pem"
}
certificate good IP:127.0.0.1 2
certificate expired IP:127.0.0.1 -1
certificate other DNS:other.example 2
