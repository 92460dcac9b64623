/* The container credentials endpoint of ECS and of EKS Pod Identity: where it is, and which hosts may be trusted to be one. Pure.
 * @see AWS SDKs and Tools Reference Guide, "Container credential provider" */
#pragma once

/** Reads AWS_CONTAINER_CREDENTIALS_RELATIVE_URI (on 169.254.170.2) or AWS_CONTAINER_CREDENTIALS_FULL_URI: https anywhere; http only to this
 * machine (127.0.0.0/8, ::1, localhost) or the addresses of ECS and EKS (169.254.170.2, 169.254.170.23, fd00:ec2::23): the token and the keys
 * would be for everybody to read.
 * @return 0 and *ret (the caller's); -ENOENT neither is set; -EINVAL and *ret_fault, a sentence (the caller's); -ENOMEM */
int credentials_container_url(char *const *environment, char **ret, char **ret_fault);

/** Reads AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, anew at each call, or AWS_CONTAINER_AUTHORIZATION_TOKEN.
 * @return 0 and *ret, an `Authorization: …` line (secret memory; NULL when neither is set); -EINVAL and *ret_fault; -ENOMEM */
int credentials_container_token(char *const *environment, char **ret, char **ret_fault);
