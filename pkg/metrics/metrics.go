// Package metrics counts what other packages tell it, and serves that to Prometheus.
//
// It owns the names, labels and help of all metrics. Labels have few values, which this module
// chooses: no name of an object, a pod or a namespace is one. The package must not know what makes a
// number move, and asks for the state of volumes and objects only when somebody scrapes.
package metrics

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/metrics"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// stability of all metrics: a name or a label changes with a release that says so.
	stability = metrics.BETA
	// maxScrapes is how many scrapes are answered at once: each of them looks at all volumes.
	maxScrapes = 4
)

// Metrics are all metrics of one plugin. All methods but New are safe for concurrent use, and none
// waits.
type Metrics struct {
	registry metrics.KubeRegistry

	calls        *metrics.HistogramVec
	propagation  *metrics.Histogram
	writes       *metrics.CounterVec
	writtenBytes *metrics.Counter
	restarts     *metrics.CounterVec
	reviews      *metrics.CounterVec
	client       *client
}

// New returns metrics that nothing has moved yet. build is the version that they tell of.
func New(build apiversion.Info) (*Metrics, error) {
	m := &Metrics{
		registry: metrics.NewKubeRegistry(),
		calls: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Name: "refvol_csi_call_duration_seconds", StabilityLevel: stability,
			Help:    "How long calls of the CSI and the registration service took, by method and gRPC code.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"method", "code"}),
		propagation: metrics.NewHistogram(&metrics.HistogramOpts{
			Name: "refvol_propagation_seconds", StabilityLevel: stability,
			Help:    "Time from the event of a change until the files of a mounted volume showed it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}),
		writes: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "refvol_writes_total", StabilityLevel: stability,
			Help: "Writes of volumes: changed, unchanged if the files were right already, or error.",
		}, []string{"result"}),
		writtenBytes: metrics.NewCounter(&metrics.CounterOpts{
			Name: "refvol_write_bytes_total", StabilityLevel: stability,
			Help: "Bytes that writes of volumes put into files.",
		}),
		restarts: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "refvol_reflector_restarts_total", StabilityLevel: stability,
			Help: "Watches that were opened again as the one before had ended: after 30 to 60 minutes, by a failure, or as it was silent.",
		}, []string{"kind"}),
		reviews: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "refvol_authorizations_total", StabilityLevel: stability,
			Help: "Answers to the question whether a service account may use an object: allowed, denied, or error.",
		}, []string{"result"}),
		client: newClient(),
	}
	if err := m.register(build); err != nil {
		return nil, fmt.Errorf("register the metrics: %w", err)
	}
	m.initialize()
	return m, nil
}

func (m *Metrics) register(build apiversion.Info) error {
	info := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "refvol_build_info", StabilityLevel: stability,
		Help: "Always 1. The labels say what is running.",
	}, []string{"version", "revision", "go_version"})
	for _, c := range []metrics.Registerable{
		m.calls, m.propagation, m.writes, m.writtenBytes, m.restarts, m.reviews, m.client.requests, m.client.durations, info,
	} {
		if err := m.registry.Register(c); err != nil {
			return err
		}
	}
	info.WithLabelValues(build.GitVersion, build.GitCommit, build.GoVersion).Set(1)
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := m.registry.Registerer().Register(c); err != nil {
			return err
		}
	}
	return nil
}

// The values of the label result.
const (
	resultChanged   = "changed"
	resultUnchanged = "unchanged"
	resultError     = "error"
	resultAllowed   = "allowed"
	resultDenied    = "denied"
)

// initialize makes every counter show from the start: a rate needs a zero to begin with.
func (m *Metrics) initialize() {
	for _, result := range []string{resultChanged, resultUnchanged, resultError} {
		m.writes.WithLabelValues(result)
	}
	for _, result := range []string{resultAllowed, resultDenied, resultError} {
		m.reviews.WithLabelValues(result)
	}
	for _, kind := range volume.Kinds() {
		m.restarts.WithLabelValues(string(kind))
	}
}

// Handler serves the metrics in Prometheus's formats.
func (m *Metrics) Handler() http.Handler {
	return metrics.HandlerFor(m.registry, metrics.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// ObserveCall counts a call of the CSI or the registration service that has ended with a gRPC code.
func (m *Metrics) ObserveCall(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}

// RecordWrite counts a try to write a volume's files, and the bytes that were written.
func (m *Metrics) RecordWrite(changed bool, bytes int64, err error) {
	result := resultUnchanged
	switch {
	case err != nil:
		result = resultError
	case changed:
		result = resultChanged
	}
	m.writes.WithLabelValues(result).Inc()
	m.writtenBytes.Add(float64(bytes))
}

// Propagated counts a change that a mounted volume shows, so long after the process learnt of it.
func (m *Metrics) Propagated(took time.Duration) { m.propagation.Observe(took.Seconds()) }

// Rewatched counts a watch of an object of a kind that was opened again.
func (m *Metrics) Rewatched(kind volume.Kind) { m.restarts.WithLabelValues(string(kind)).Inc() }

// Reviewed counts the answer to the question whether somebody may use an object.
func (m *Metrics) Reviewed(allowed bool, err error) {
	result := resultDenied
	switch {
	case err != nil:
		result = resultError
	case allowed:
		result = resultAllowed
	}
	m.reviews.WithLabelValues(result).Inc()
}
