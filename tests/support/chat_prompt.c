/* The prompt that gac makes of a message by the chat template of a directory.
 *
 *   chat_prompt DIR MESSAGE [SYSTEM]
 *
 * Prints {"end", "prompt"}: "end" is the token that ends an answer; "prompt" is null without
 * a template. */
#include <gac/tokenizer.h>

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_tokenizer *tokenizer = NULL;
    gac_chat *chat = NULL;
    char *text = NULL;
    if (argc != 3 && argc != 4)
        return 2;
    gac_status status = gac_tokenizer_open(argv[1], &tokenizer, &err);
    if (status == GAC_OK)
        status = gac_chat_open(argv[1], &chat, &err);
    if (status == GAC_OK && chat)
        status = gac_chat_prompt(chat, tokenizer, argc == 4 ? argv[3] : NULL, argv[2], &text, &err);
    if (status == GAC_OK) {
        const int32_t end = gac_chat_end(chat, tokenizer);
        json_t *result =
            json_pack("{s:s?, s:s?}", "end", end >= 0 ? gac_tokenizer_piece(tokenizer, end) : NULL,
                      "prompt", text);
        json_dumpf(result, stdout, 0);
        json_decref(result);
    } else {
        fprintf(stderr, "%s\n", err.text);
    }
    free(text);
    gac_chat_close(chat);
    gac_tokenizer_close(tokenizer);
    return (int)status;
}
