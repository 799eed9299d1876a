// Products with quantised tiles, rounding, expansion, gathering and epilogues of one path.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference.h"

namespace ortolan::test {

inline std::string name_of(const QuantForm& form) {
  return "int" + std::to_string(form.bits) + " g" + std::to_string(form.group) + (form.minima ? " minima" : "") +
         (form.half_scales ? " half" : " float");
}

inline std::vector<QuantForm> all_forms() {
  std::vector<QuantForm> forms;
  for (int bits : {4, 8}) {
    for (int group : {16, 32, 64, 128}) {
      if (bits == 4 && group == 16) continue;
      for (bool minima : {false, true}) {
        for (bool half : {false, true}) forms.push_back({bits, group, minima, half});
      }
    }
  }
  return forms;
}

// Rows rounded into panels as QuantMatMul does it; `row` names the first of a panel.
struct Panels {
  const Kernels& kernels;
  QuantForm form;
  int groups;
  int rows;
  size_t row_bytes;
  Exact<int8_t> codes;
  Exact<float> scales;

  Panels(const Kernels& kernels, const QuantForm& form, const Exact<float>& x, int rows, int columns)
      : kernels(kernels),
        form(form),
        groups((columns + form.group - 1) / form.group),
        rows(rows),
        row_bytes(static_cast<size_t>(groups * kernels.group_room(form))),
        codes(static_cast<size_t>(rows) * row_bytes),
        scales(static_cast<size_t>(rows * 2 * groups)) {
    for (int row = 0; row < rows;) {
      const QuantPanel panel = at(row);
      for (int r = 0; r < panel.rows; ++r) {
        // The row alone in memory of its own: nothing past its end may be read.
        Exact<float> own(static_cast<size_t>(columns));
        std::copy_n(x.get() + static_cast<size_t>((row + r) * columns), columns, own.get());
        kernels.quantise_row(form, own.get(), columns, panel, r);
      }
      row += panel.rows;
    }
  }
  QuantPanel at(int row) {
    return {codes.get() + static_cast<size_t>(row) * row_bytes, scales.get() + row * 2 * groups,
            kernels.panel_rows(form, rows - row)};
  }
};

// What a product with int8 activations may differ by: half a step of each activation times its weight, and the
// rounding of two operations in float32 for each group.
inline void expect_products(const TileCase& tile, const float* x, int columns, const float* y, double* slack) {
  const int stride = tile.columns(), group = tile.form.group;
  for (int lane = 0; lane < kTile; ++lane) {
    double exact = 0, bound = 0;
    for (int first = 0; first < columns; first += group) {
      double top = 0, size = 0, magnitude = 0;
      for (int c = first; c < std::min(columns, first + group); ++c) {
        const double w = tile.weight[static_cast<size_t>(lane * stride + c)];
        exact += w * x[c];
        top = std::max(top, std::fabs(static_cast<double>(x[c])));
        size += std::fabs(w);
        magnitude += std::fabs(w) * std::fabs(static_cast<double>(x[c]));
      }
      // With minima a weight is the difference of two terms, each rounded by itself.
      bound += size * top / 254 * 1.001 + (magnitude + 255.0 * 0.07 * group * top) * 1e-6;
    }
    *slack = std::max(*slack, std::fabs(y[lane] - exact) - bound);
  }
}

inline void test_products(const Kernels& kernels, Report& report) {
  Random random(7);
  for (const QuantForm& form : all_forms()) {
    for (int groups : {1, 3}) {
      const TileCase first(form, groups, random), second(form, groups, random);
      const QuantTile both[2] = {first.tile(), second.tile()};
      for (int columns : {groups * form.group, groups * form.group - 3}) {
        const int rows = 79;
        Exact<float> x(static_cast<size_t>(rows * columns));
        for (size_t i = 0; i < x.size(); ++i) x[i] = random.normal();
        const std::string what = std::string(kernels.name) + " " + name_of(form) + " K " + std::to_string(columns);
        Panels all(kernels, form, x, rows, columns);
        Exact<uint8_t> bytes[2] = {Exact<uint8_t>(form.expanded_bytes(groups)), Exact<uint8_t>(form.expanded_bytes(groups))};
        QuantTile wide[2] = {both[0], both[1]};
        const int expand_from = kernels.expand_from(form);
        for (int t = 0; expand_from && t < 2; ++t) wide[t] = kernels.expand(both[t], bytes[t].get());
        std::vector<float> whole(2 * rows * kTile);
        for (int row = 0; row < rows;) {
          const QuantPanel panel = all.at(row);
          std::vector<float> y(static_cast<size_t>(2 * panel.rows * kTile)), one(y.size() / 2);
          const QuantTile* tiles = panel.rows == 16 ? wide : both;
          kernels.multiply_tiles(tiles, 2, panel, y.data());
          kernels.multiply_tiles(tiles, 1, panel, one.data());
          report.check(std::equal(one.begin(), one.end(), y.begin()), what + ": one tile or two");
          double slack = -1;
          for (int r = 0; r < panel.rows; ++r) {
            const float* in = x.get() + static_cast<size_t>((row + r) * columns);
            expect_products(first, in, columns, &y[static_cast<size_t>(r * kTile)], &slack);
            expect_products(second, in, columns, &y[static_cast<size_t>((panel.rows + r) * kTile)], &slack);
            std::copy_n(&y[static_cast<size_t>(r * kTile)], kTile, &whole[static_cast<size_t>((row + r) * kTile)]);
          }
          report.check(slack <= 0, what + ": within the bound, panel of " + std::to_string(panel.rows));
          row += panel.rows;
        }
        for (int row = 0; row < rows; ++row) {
          Exact<float> alone(static_cast<size_t>(columns));
          std::copy_n(x.get() + static_cast<size_t>(row * columns), columns, alone.get());
          Panels panel(kernels, form, alone, 1, columns);
          float y[kTile];
          kernels.multiply_tiles(both, 1, panel.at(0), y);
          report.check(std::equal(y, y + kTile, &whole[static_cast<size_t>(row * kTile)]), what + ": a row alone");
        }
        kernels.release_unit();
        if (!expand_from) continue;
        for (int row = 0; row < rows; row += all.at(row).rows) {
          std::vector<float> y(static_cast<size_t>(all.at(row).rows * kTile));
          kernels.multiply_tiles(wide, 1, all.at(row), y.data());
          report.check(std::equal(y.begin(), y.end(), &whole[static_cast<size_t>(row * kTile)]),
                       what + ": codes made bytes");
        }
      }
    }
  }
}

inline void test_single_codes(const Kernels& kernels, Report& report) {
  Random random(8);
  for (const QuantForm& form : all_forms()) {
    const TileCase tile(form, 2, random);
    const int columns = tile.columns() - 5;
    const std::string what = std::string(kernels.name) + " " + name_of(form);
    Exact<float> x(static_cast<size_t>(3 * columns));
    for (size_t i = 0; i < x.size(); ++i) x[i] = random.normal();
    float y[3 * kTile];
    kernels.multiply_tile_exactly(tile.tile(), x.get(), static_cast<size_t>(columns), columns, 3, y);
    double worst = 0, largest = 0;
    for (int lane = 0; lane < kTile; ++lane) {
      Exact<float> row(static_cast<size_t>(columns));
      kernels.gather_row(tile.tile(), lane, columns, row.get());
      double exact[3] = {};
      for (int c = 0; c < columns; ++c) {
        const double w = tile.weight[static_cast<size_t>(lane * tile.columns() + c)];
        worst = std::max(worst, std::fabs(row[static_cast<size_t>(c)] - w));
        largest = std::max(largest, std::fabs(w));
        for (int r = 0; r < 3; ++r) exact[r] += w * x[static_cast<size_t>(r * columns + c)];
      }
      for (int r = 0; r < 3; ++r) {
        report.check(std::fabs(y[r * kTile + lane] - exact[r]) <= 1e-5 * columns, what + ": products in float32");
      }
    }
    report.check(worst <= 1e-6 * (largest + 8), what + ": a gathered row");
  }
}

// Weights in binary32: within rounding of the exact products, and a row's bits whatever stands beside it.
inline void test_plain_weights(const Kernels& kernels, Report& report) {
  Random random(10);
  const std::string name = std::string(kernels.name) + ": plain weights, ";
  for (int columns : {1, kernels.width - 1, kernels.width, 3 * kernels.width + 5, 200}) {
    for (int outputs : {1, 3, 4, 7, kTile}) {
      const auto size = static_cast<size_t>(columns);
      Exact<float> weights(static_cast<size_t>(outputs) * size), x(kMostRows * size), y(kMostRows * kTile);
      for (Exact<float>* some : {&weights, &x}) {
        for (size_t i = 0; i < some->size(); ++i) (*some)[i] = random.normal();
      }
      const std::string what = name + std::to_string(outputs) + " of " + std::to_string(columns) + " columns";
      for (int rows : {1, 2, 3, 5, kMostRows}) {
        // Exactly as much as the last product of the last row needs.
        Exact<float> products(static_cast<size_t>((rows - 1) * kTile + outputs));
        kernels.multiply_plain(weights.get(), outputs, x.get(), columns, rows, products.get());
        for (int r = 0; r < rows; ++r) {
          for (int o = 0; o < outputs; ++o) {
            double exact = 0, magnitude = 0;
            for (size_t c = 0; c < size; ++c) {
              const double term = static_cast<double>(weights[static_cast<size_t>(o) * size + c]) *
                                  x[static_cast<size_t>(r) * size + c];
              exact += term;
              magnitude += std::fabs(term);
            }
            const float product = products[static_cast<size_t>(r * kTile + o)];
            // No sum has more than a quarter of the terms and four more additions, each rounding to 2^-24.
            report.check(std::fabs(product - exact) <= (columns / 4 + 6) * 0x1p-24 * magnitude, what);
            float& first = y[static_cast<size_t>(r * kTile + o)];
            if (rows == 1 || first == 0) first = product;
            report.check(product == first, what + ": the bits of a row among " + std::to_string(rows));
          }
        }
      }
      for (int o = 0; o < outputs; ++o) {
        float alone = 0;
        kernels.multiply_plain(weights.get() + o * columns, 1, x.get(), columns, 1, &alone);
        report.check(alone == y[static_cast<size_t>(o)], what + ": the bits of an output alone");
      }
    }
  }
}

inline void test_epilogue(const Kernels& kernels, Report& report) {
  Random random(9);
  for (int count : {kTile, 7}) {
    for (int kind = 0; kind < 16; ++kind) {
      const bool bias = kind & 1, residual = kind & 2, gated = kind & 4;
      const auto size = static_cast<size_t>(count);
      Exact<float> b(size), u(size), rest(2 * size), out(2 * size), y(2 * kTile), up(2 * kTile);
      for (Exact<float>* some : {&b, &u, &rest, &y, &up}) {
        for (size_t i = 0; i < some->size(); ++i) (*some)[i] = random.normal();
      }
      Epilogue how{};
      how.bias = bias ? b.get() : nullptr;
      how.up_bias = bias && gated ? u.get() : nullptr;
      how.residual = residual ? rest.get() : nullptr;
      how.out = out.get();
      how.stride = count;
      how.count = count;
      how.gated = gated;
      how.activation = kind & 8 ? Activation::kGeluTanh : Activation::kSilu;
      kernels.finish_rows(how, y.get(), up.get(), 2);
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < count; ++i) {
          double value = y[static_cast<size_t>(r * kTile + i)] + (bias ? b[static_cast<size_t>(i)] : 0.0f);
          if (gated) {
            const double factor = up[static_cast<size_t>(r * kTile + i)] + (bias ? u[static_cast<size_t>(i)] : 0.0f);
            const double inner = std::sqrt(2 / 3.14159265358979) * (value + 0.044715 * value * value * value);
            value *= kind & 8 ? 0.5 * (1 + std::tanh(inner)) : 1 / (1 + std::exp(-value));
            value *= factor;
          }
          if (residual) value += rest[static_cast<size_t>(r * count + i)];
          report.check(std::fabs(out[static_cast<size_t>(r * count + i)] - value) <= 4e-6 * (1 + std::fabs(value)),
                       std::string(kernels.name) + ": epilogue " + std::to_string(kind));
        }
      }
    }
  }
}

}  // namespace ortolan::test
