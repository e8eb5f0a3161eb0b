package world

import (
	"fmt"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// Scrape is what a plugin served at one moment, by the name of the metric.
type Scrape map[string]*dto.MetricFamily

// ScrapeText returns what the plugin serves at /metrics. It must run with AnyPort.
func (n *Node) ScrapeText() string {
	n.T.Helper()
	answer, err := harness.Get(n.T.Context(), "http://"+n.Address(n.HTTPAddress)+"/metrics")
	if err != nil || answer.Status != 200 {
		n.T.Fatalf("scrape: %v, %v", answer, err)
	}
	return answer.Body
}

// Scrape returns what the plugin serves at /metrics, parsed.
func (n *Node) Scrape() Scrape {
	n.T.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return must.Get(parser.TextToMetricFamilies(strings.NewReader(n.ScrapeText())))(n.T)
}

// Series is a metric and the labels that it must have, as name{label="value"}, without regard to others.
type Series string

// Sum returns the sum of all values of a series; of a histogram, the number of observations.
func (s Scrape) Sum(of Series) float64 {
	name, labels, _ := strings.Cut(strings.TrimSuffix(string(of), "}"), "{")
	sum := 0.0
	for _, metric := range s[name].GetMetric() {
		if hasLabels(metric, labels) {
			sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func hasLabels(metric *dto.Metric, labels string) bool {
	has := map[string]bool{"": true}
	for _, pair := range metric.GetLabel() {
		has[fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue())] = true
	}
	for label := range strings.SplitSeq(labels, ",") {
		if !has[label] {
			return false
		}
	}
	return true
}

// Counts waits until all series have the values.
func (n *Node) Counts(want map[Series]float64) {
	n.T.Helper()
	harness.Eventually(n.T, Soon, func() error {
		now := n.Scrape()
		for of, value := range want {
			if got := now.Sum(of); got != value {
				return fmt.Errorf("%s is %v, want %v", of, got, value)
			}
		}
		return nil
	})
}
