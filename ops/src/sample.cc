#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "philox.h"
#include "sample_inputs.h"

namespace ortolan {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
// Below it a temperature could not be divided by; as cold as this, the best token always wins.
constexpr float kColdest = 1e-30f;
// Scores of a row that are many enough for an estimate from some of them.
constexpr int64_t kWide = 16384;

// Where the results of one row go.
struct Answer {
  int64_t* id;
  int32_t* status;
  float* logprob;
  int32_t* rank;
  int32_t* top_ids;      // [most]
  float* top_logprobs;  // [most]
};

// The largest float that is not above x, and the smallest that is not below it.
float rounded_down(double x) {
  const float near = static_cast<float>(x);
  return near > x ? std::nextafter(near, -kInfinity) : near;
}
float rounded_up(double x) {
  const float near = static_cast<float>(x);
  return near < x ? std::nextafter(near, kInfinity) : near;
}

// Chooses or scores the token of one row.
class RowSampler {
 public:
  RowSampler(const Kernels& kernels, const SampleInputs& inputs, int64_t row)
      : inputs_(inputs),
        row_(row),
        scratch_(ScoreRow::room(inputs.vocabulary())),
        scores_(kernels, inputs.vocabulary(), scratch_) {}

  void run(const Answer& answer) {
    const float* logits = inputs_.logits(row_);
    const int64_t forced = inputs_.number(row_, kForced), wanted = inputs_.number(row_, kLogprobs);
    const bool scored = wanted >= 0;
    if (scored || forced >= 0) {
      if (!scores_.read(logits)) return refuse(answer, kNotFinite);
    }
    double log_total = 0.0;
    float peak = 0.0f;
    if (scored) {
      peak = scores_.peak();
      log_total = scores_.log_total();
      tell_best(answer, wanted, log_total);
    }
    if (forced >= 0) {
      *answer.id = forced;
    } else {
      const RowStatus status = prepare(logits, scored);
      if (status != kSound) return refuse(answer, status);
      *answer.id = choose();
    }
    if (!scored) return;
    if (changed_) scores_.read(logits);
    const float logit = logits[*answer.id];
    *answer.logprob = static_cast<float>(static_cast<double>(logit) - peak - log_total);
    *answer.rank = scores_.rank(logit);
  }

 private:
  void refuse(const Answer& answer, RowStatus status) const {
    *answer.id = 0;
    *answer.status = status;
    *answer.logprob = 0.0f;
    *answer.rank = 0;
    std::fill(answer.top_ids, answer.top_ids + inputs_.most(), -1);
    std::fill(answer.top_logprobs, answer.top_logprobs + inputs_.most(), 0.0f);
  }

  void tell_best(const Answer& answer, int64_t wanted, double log_total) {
    if (wanted == 0) return;
    const Candidates& found = scores_.select(wanted, kLowest);
    std::vector<int32_t> order(static_cast<size_t>(found.count));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const int64_t count = std::min(wanted, found.count);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&found](int32_t a, int32_t b) {
      return found.values[a] > found.values[b] || (found.values[a] == found.values[b] && a < b);
    });
    for (int64_t i = 0; i < count; ++i) {
      const int32_t place = order[static_cast<size_t>(i)];
      answer.top_ids[i] = found.ids[place];
      answer.top_logprobs[i] =
          static_cast<float>(static_cast<double>(found.values[place]) - scores_.peak() - log_total);
    }
  }

  // The scores that the token is chosen by: mask, bias and penalties applied.
  RowStatus prepare(const float* logits, bool read) {
    const TokenList<int32_t> tokens = inputs_.tokens(row_);
    const TokenList<float> bias = inputs_.bias(row_);
    const uint32_t* mask = inputs_.mask(row_);
    if (!mask && tokens.count == 0 && bias.count == 0) {
      return read || scores_.read(logits) ? kSound : kNotFinite;
    }
    changed_ = true;
    if (!scores_.copy(logits, mask)) return kNotFinite;
    for (int64_t i = 0; i < bias.count; ++i) scores_.at(bias.ids[i]) += bias.values[i];
    penalise(tokens);
    scores_.settle();
    if (scores_.peak() == kInfinity) return kNotFinite;
    if (scores_.peak() > -kInfinity) return kSound;
    return scores_.read(logits) ? kNothingAllowed : kNotFinite;
  }

  void penalise(const TokenList<int32_t>& tokens) {
    const float repetition = inputs_.setting(row_, kRepetition);
    const float presence = inputs_.setting(row_, kPresence), frequency = inputs_.setting(row_, kFrequency);
    for (int64_t i = 0; i < tokens.count; ++i) {
      float& score = scores_.at(tokens.ids[i]);
      const int32_t count = tokens.values[i];
      if (repetition != 1.0f) score = score > 0.0f ? score / repetition : score * repetition;
      score -= frequency * static_cast<float>(count);
      if (count > 0) score -= presence;
    }
  }

  int64_t choose() {
    const float temperature = inputs_.setting(row_, kTemperature);
    if (!(temperature > 0.0f)) return scores_.best();
    const float heat = std::max(temperature, kColdest), scale = 1.0f / heat;
    const double number = philox_uniform(static_cast<uint64_t>(inputs_.number(row_, kSeed)),
                                         static_cast<uint64_t>(inputs_.number(row_, kPosition)));
    const float min_p = inputs_.setting(row_, kMinP), top_p = inputs_.setting(row_, kTopP);
    const int64_t asked = inputs_.number(row_, kTopK);
    const int64_t top_k = asked > 0 && asked < inputs_.vocabulary() ? asked : 0;
    double mass = 0.0;
    if (top_k > 0 || min_p > 0.0f) {
      const double least = scores_.peak() + heat * std::log(static_cast<double>(min_p));
      scores_.select(top_k, min_p > 0.0f ? rounded_up(least) : kLowest);
      mass = scores_.weigh(scale);
    } else {
      mass = scores_.sum(scale);
      if (!(top_p < 1.0f)) return scores_.draw_of_all(number, scale);
      select_nucleus(mass, scale, heat);
    }
    if (top_p < 1.0f) scores_.keep_mass(static_cast<double>(top_p) * mass);
    return scores_.draw(number);
  }

  // Selects and weighs tokens that hold top-p of the mass, and not many more.
  void select_nucleus(double mass, float scale, float heat) {
    const double top_p = static_cast<double>(inputs_.setting(row_, kTopP));
    // Tokens with less than (1 - p) / V of the mass hold less than 1 - p of it together: none belongs to the
    // nucleus. The factor leaves room for rounding.
    const double vocabulary = static_cast<double>(inputs_.vocabulary());
    const double lightest = 0.999 * (1.0 - top_p) * mass / vocabulary;
    const float least = rounded_down(scores_.peak() + heat * std::log(lightest));
    if (inputs_.vocabulary() >= kWide) {
      // Somewhat more than p by the estimate mostly is p at least, and far fewer tokens than those above.
      const float guess = scores_.estimate(top_p + 0.25 * (1.0 - top_p), least, scale);
      scores_.select(0, guess);
      if (scores_.weigh(scale) >= top_p * mass) return;
    }
    scores_.select(0, least);
    scores_.weigh(scale);
  }

  const SampleInputs& inputs_;
  const int64_t row_;
  Scratch scratch_;
  ScoreRow scores_;
  bool changed_ = false;
};

}  // namespace

void Sample::compute(const Call& call) const {
  const SampleInputs inputs(call);
  const int64_t rows = inputs.rows(), most = inputs.most();
  const Tensor ids = call.output(0, "ids", {rows}), status = call.output(1, "status", {rows});
  const Tensor logprobs = call.output(2, "logprobs", {rows}), ranks = call.output(3, "ranks", {rows});
  const Tensor top_ids = call.output(4, "top_ids", {rows, most});
  const Tensor top_logprobs = call.output(5, "top_logprobs", {rows, most});
  call.parallel_for(static_cast<size_t>(rows), [&](size_t index) {
    const int64_t row = static_cast<int64_t>(index);
    const Answer answer{ids.as<int64_t>() + row,           status.as<int32_t>() + row,
                        logprobs.as<float>() + row,        ranks.as<int32_t>() + row,
                        top_ids.as<int32_t>() + row * most, top_logprobs.as<float>() + row * most};
    *answer.status = kSound;
    *answer.logprob = 0.0f;
    *answer.rank = 0;
    std::fill(answer.top_ids, answer.top_ids + most, -1);
    std::fill(answer.top_logprobs, answer.top_logprobs + most, 0.0f);
    RowSampler(kernels_, inputs, row).run(answer);
  });
}

}  // namespace ortolan
