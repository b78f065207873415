// A model with its weights, rows of keys and values, and forwards of tokens of rows.
#pragma once
#include <mutex>
#include <stdexcept>
#include <string>

#include "packing.h"

namespace draftwood {
// Weights of a layer as they come. Biases and norms are float32, or null.
struct LayerSource : LayerFacts {
    Matrix query, key, value, out, gate, up, down;
    const float *query_bias, *key_bias, *value_bias, *out_bias, *gate_bias, *up_bias, *down_bias;
    const float *query_norm, *key_norm;
    // Of a mixture: [expert][width]; gates and ups, [expert][inner][width], or without ``experts_up`` both, [expert][gates, ups][width];
    // [expert][width][inner]. The matrices above, if there are any, are those of an expert that all tokens have, with ``shared_gate``,
    // [1][width], or without.
    Matrix router, experts_gate, experts_up, experts_down, shared_gate;
    const float *router_bias, *experts_gate_bias, *experts_up_bias, *experts_down_bias;  // [expert], [expert][output]
    // Of attention: heads of keys and values and numbers of a head, and of any layer the feed-forward network's, where they are not
    // those of the facts, else 0; how many layers before is the one whose keys and values it reads, 0 for its own.
    int kv_heads, head_dim, inner, lender;
    // What it adds of a token's further inputs: gates [input][width], and [width][input]; or without data.
    Matrix input_gate, input_projection;
    // Of a layer of another kind than attention, with ``out``: queries, keys and values, or the inputs, factors of the outputs and
    // factors of the inputs of a short convolution; gates of the outputs; what shares and decays are made of. Of Mamba-2 ``mixed``
    // has gates, x, B, C and dt.
    Matrix mixed, mixed_gate, share, decay;
    // [channel][tap]; [channel] or null; [head], below 0; [head]; [value], or of Mamba-2 [head][value]; [head] of Mamba-2.
    const float *convolution, *convolution_bias, *decay_rate, *decay_bias, *state_norm, *skip;
};

// What a drafter of hidden states has in addition to its layers.
struct DrafterSource : DrafterFacts {
    const void* features;
    const float *source_norm, *feature_norm;
    const void* markov_in;  // in the model's format
    Matrix markov_out;
};

// A model whose weights are packed in the order in which they are read.
class Engine {
  public:
    // Layers are added one by one. An embedding in the model's format, or in codes that stay codes, stays where it is. ``threads``
    // pack. A head without data comes from another model.
    Engine(const Facts& facts, const int* taps, const Matrix& embedding, const Matrix& head, const float* norm, int threads);
    void add(const LayerSource& from);
    const Model& model() const { return model_; }
    void drafter(const DrafterSource& source);
    // What each layer has of a token of its own: rows of a table times ``scale``, [token][layer][input], and products of the
    // embedding, [layer][input][width], normed.
    void layer_inputs(const Matrix& table, const Matrix& projection, const float* norm, float scale);
    void share_head(const std::shared_ptr<Engine>& lender);
    void rotate(const float* cos, const float* sin, const float* queries, int tables, int positions);
    size_t page_bytes() const { return model_.page_numbers * number_bytes(); }
    // A page of zeros, in the memory of a free one if there is any: the system takes long to map new memory.
    std::shared_ptr<char> new_page();
    // Of all rows: pages, of which those that rows share count once, and what layers with a running state keep.
    long memory_bytes() const { return pages_.load() * (long)Buffer::whole(page_bytes()) + state_bytes.load(); }
    // Of a row, whatever the length of its text: its states, and entries of text and of ROUND nodes.
    long row_bytes() const;
    // Reads all weights once, and returns something of them: the floor of a forward's time.
    long read(int threads) const;

    std::atomic<long> state_bytes{0};

  private:
    void take_facts(const Facts& facts);
    Table take_table(const Matrix& table, int numbers);
    void lay_out_states();
    void place_layer(const LayerSource& from, Layer& layer);
    void place_keys(const LayerSource& from, Layer& layer);
    void pack_attention(const LayerSource& from, Layer& to);
    void pack_state(const LayerSource& from, Layer& to);
    void pack_short_convolution(const LayerSource& from, Layer& to);
    Linear pack_rows(const Matrix& from, int rows, const Columns& columns, const float* bias = nullptr, size_t first = 0);
    void pack_feed_forward(const LayerSource& from, Layer& to);
    void pack_experts(const LayerSource& from, Layer& to);
    void pack_norms(const LayerSource& from, Layer& to);
    void pack_layer_input(const LayerSource& from, Layer& to);
    size_t number_bytes() const { return model_.facts.bfloat16 ? 2 : 4; }

    Model model_{};
    Packer packer_;
    std::vector<Layer> layers_;
    std::vector<int> taps_;
    std::vector<float> cos_, sin_, queries_;
    std::shared_ptr<Engine> lender_;  // of the head, or null
    std::atomic<long> pages_{0};      // that rows hold
    std::mutex freeing_;
    std::vector<std::unique_ptr<Buffer>> free_;
};

typedef std::vector<std::shared_ptr<char>> Pages;

// What a row keeps for layers with a running state (states.h).
class States {
  public:
    // With the state of one checkpoint, of others or of zeros.
    States(Engine& engine, int checkpoint, const States* other = nullptr);
    ~States() { engine_.state_bytes -= taken_; }
    // Bytes of the states of a checkpoint, and of a block of entries.
    static long bytes(const Model& model), block_bytes(const Model& model);
    void operator=(const States&) = delete;
    // Room for so many nodes of a round.
    RowStates reserve(int nodes);
    // Nodes of a round behind ``text`` tokens become text.
    void commit(int text, const int* nodes, int count);
    // The checkpoint from which the next token of the first ``length`` of ``text`` tokens can be read, if possible the last of them
    // too; -1 if none is kept.
    int source(int text, int length) const;
    // The parts of its memory that ``text`` tokens need to go on behind the last one, or in place of it, and their bytes: the
    // state of a checkpoint, two blocks of entries.
    static const int PARTS = 3;
    std::pair<void*, long> part(int text, int index);

  private:
    float* reserve(long bytes, const float* from);
    void add_block(const float* from) { blocks_.push_back(reserve(block_bytes(engine_.model()), from)); }

    Engine& engine_;
    float* states_[2] = {nullptr, nullptr};  // null until text needs it
    std::vector<int> checkpoints_;
    std::vector<std::unique_ptr<Buffer>> memory_;
    std::vector<float*> blocks_;
    long taken_ = 0;
};

// The text of a row in memory, and the nodes of its round behind it.
class Row {
  public:
    explicit Row(std::shared_ptr<Engine> engine);
    // A row with the first tokens of another one, as many as it can reach. They share pages until one of them writes there.
    Row(const Row& other, int length);
    // Of these first tokens those behind which a text can go on: none if running states are not kept so far back.
    int reach(int length) const;
    // Keep the first tokens, and no node; or no token, for the same reason.
    void cut(int length);
    // Nodes of the round, in this order, become the next tokens of the text; the others are forgotten.
    void commit(const int* nodes, int count);
    // Own pages of so many tokens, text included, from the end of the text on: new tokens are written there next.
    void reserve(int slots);
    // Take so many tokens, whose memory is written next.
    void restore(int length);
    // Its memory and the bytes of it, part by part: those of running states, then pages of the text; -1 bytes behind the last one.
    std::pair<void*, long> part(int index);
    const std::shared_ptr<Engine>& shared() const { return engine_; }
    const Pages& pages() const { return pages_; }
    RowStates states(int most) { return states_ ? states_->reserve(most) : RowStates{}; }

    int text = 0, nodes = 0;

  private:
    // Tokens whose entries may have been written, some of them cut since.
    int written() const { return std::max(text, written_); }
    void own(int page);
    void move(int from, int to);

    std::shared_ptr<Engine> engine_;
    Pages pages_;
    int written_ = 0;
    std::unique_ptr<States> states_;  // null if no layer has a running state
};

// New tokens of a row: those of its text that come next, then nodes. A node sees the text, and what ``seen`` says of the nodes
// of its round: [node][width], where ``width`` is the number of nodes of the round so far, itself the last. A drafter whose
// first layer has a ``hidden_norm`` reads the target's hidden states, or features, of all of them: text, then nodes. One that
// ``embeds`` reads hidden states of all of them, which may be its own.
struct NewTokens {
    Row* row;
    int pending, nodes, width;
    const int* text;
    const int64_t *tokens, *depths;
    const unsigned char* seen;
    const float *sources, *features;  // [token][source][source_width]; [token][width]
};

// Hidden states of a row's next tokens, and its root; the first token of its memory is at position ``start`` of the text.
struct NewHidden {
    Row* row;
    int start, count, root;
    const float* hidden;  // [token][source][source_width]
};

// A block that begins with the root and is filled with ``mask``.
struct BlockShape {
    int slots, scored, causal;  // tokens, of which the last ones are scored; a token sees later ones unless causal
    const float* mask;          // [width]
};

// Instruction sets that this processor has, the best one last, separated by spaces.
std::string instruction_sets();
// Compute with this one; throws std::invalid_argument.
void use_instruction_set(const std::string& name);
const Kernels& kernels(const Facts* facts = nullptr);  // its code, for a model of these facts or for what has no model

// What of a distribution stays possible; 0, 1 and 0 for everything.
struct Cuts {
    int top_k;
    double top_p, min_p;
};
}  // namespace draftwood
