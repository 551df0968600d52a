/* The input is a chat template. It makes a prompt, or is refused in one line. */
#include <stdlib.h>
#include <string.h>

#include <gac/tokenizer.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

static const char tokenizer_json[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
    "\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"a\":1},\"merges\":[]}}";

static void ask(const gac_chat *chat, const gac_tokenizer *tokenizer, const char *system)
{
    gac_error err = GAC_ERROR_INIT;
    char *text = NULL;
    gac_status status = gac_chat_prompt(chat, tokenizer, system, " a \xc3\xa9 <s>\n", &text, &err);
    if (status == GAC_USAGE) /* the template refuses the messages */
        FUZZ_CHECK(strstr(err.text, "its chat template refuses the message: "));
    else if (status != GAC_OK)
        fuzz_check_refusal(status, &err);
    else
        FUZZ_CHECK(text != NULL);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static gac_tokenizer *tokenizer;
    gac_error err = GAC_ERROR_INIT;
    gac_chat *chat = NULL;
    if (!tokenizer) {
        fuzz_put("tokenizer.json", tokenizer_json, sizeof tokenizer_json - 1);
        FUZZ_CHECK(gac_tokenizer_open(fuzz_folder(), &tokenizer, &err) == GAC_OK);
    }
    fuzz_put("chat_template.jinja", data, n_bytes);
    gac_status status = gac_chat_open(fuzz_folder(), &chat, &err);
    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
        return 0;
    }
    FUZZ_CHECK(gac_chat_end(chat, tokenizer) >= -1);
    ask(chat, tokenizer, NULL);
    ask(chat, tokenizer, "a");
    gac_chat_close(chat);
    return 0;
}
