package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refvol/refvol/pkg/requests"
)

// ShowRequests adds the metrics of state, which is called at each scrape. A second call fails.
func (m *Metrics) ShowRequests(state func() requests.State) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	err := m.registry.Register(&requestsCollector{
		state:    state,
		underWay: desc("refvol_requests_under_way", "Requests to the API server without an answer, for a second each: 12 at most, 16 with urgent ones."),
		waiting:  desc("refvol_requests_waiting", "Requests to the API server that are not sent yet."),
		closed:   desc("refvol_requests_paused_identities", "Identities whose requests to the API server wait until one of them succeeds, by the reason.", "reason"),
	})
	if err != nil {
		return fmt.Errorf("register the metrics of requests: %w", err)
	}
	return nil
}

// requestsCollector reads the state at each scrape.
type requestsCollector struct {
	state                     func() requests.State
	underWay, waiting, closed *prometheus.Desc
}

// Describe sends the descriptions.
func (c *requestsCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.underWay, c.waiting, c.closed} {
		to <- d
	}
}

// Collect sends the present state.
func (c *requestsCollector) Collect(to chan<- prometheus.Metric) {
	s := c.state()
	to <- prometheus.MustNewConstMetric(c.underWay, prometheus.GaugeValue, float64(s.UnderWay))
	to <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(s.Waiting))
	for _, reason := range requests.Reasons() {
		to <- prometheus.MustNewConstMetric(c.closed, prometheus.GaugeValue, float64(s.Closed[reason]), string(reason))
	}
}
