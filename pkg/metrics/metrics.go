// Package metrics counts what other packages report, and serves it to Prometheus.
//
// It owns the names, labels and help texts of all metrics. Labels have few values, which this module chooses: names of objects, pods and
// namespaces are never labels. The package must not know why a number changes. It reads the state of volumes and objects only during a
// scrape.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/refvol/refvol/pkg/volume"
)

// maxScrapes limits concurrent scrapes, because each of them reads the state of all volumes.
const maxScrapes = 4

// Metrics are all metrics of one plugin. All methods are safe for concurrent use, and none of them blocks.
type Metrics struct {
	registry *prometheus.Registry

	calls        *prometheus.HistogramVec
	propagation  prometheus.Histogram
	opened       prometheus.Histogram
	writes       *prometheus.CounterVec
	writtenBytes prometheus.Counter
	restarts     *prometheus.CounterVec
	reviews      *prometheus.CounterVec
	leftOut      prometheus.Counter
	requests     *prometheus.CounterVec
	durations    *prometheus.HistogramVec
}

// New returns metrics without any counts. build is the version that they report.
func New(build apiversion.Info) *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	add := promauto.With(registry)
	add.NewGaugeVec(prometheus.GaugeOpts{
		Name: "refvol_build_info",
		Help: "Always 1. The labels say what is running.",
	}, []string{"version", "revision", "go_version"}).WithLabelValues(build.GitVersion, build.GitCommit, build.GoVersion).Set(1)
	m := &Metrics{
		registry: registry,
		calls: add.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "refvol_csi_call_duration_seconds",
			Help:    "How long calls of the CSI and the registration service took, by method and gRPC code.",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"method", "code"}),
		propagation: add.NewHistogram(prometheus.HistogramOpts{
			Name:    "refvol_propagation_seconds",
			Help:    "Time from the event of a change until the files of a mounted volume showed it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600},
		}),
		opened: add.NewHistogram(prometheus.HistogramOpts{
			Name:    "refvol_open_seconds",
			Help:    "Time from the moment when the files of an object got their present content until the last of them was opened for the first time.",
			Buckets: []float64{.01, .1, 1, 10, 60, 300, 900, 3600, 14400, 86400},
		}),
		writes: add.NewCounterVec(prometheus.CounterOpts{
			Name: "refvol_writes_total",
			Help: "Writes of volumes: changed, unchanged if the files were already right, or error.",
		}, []string{"result"}),
		writtenBytes: add.NewCounter(prometheus.CounterOpts{
			Name: "refvol_write_bytes_total",
			Help: "Bytes that writes of volumes put into files.",
		}),
		restarts: add.NewCounterVec(prometheus.CounterOpts{
			Name: "refvol_reflector_restarts_total",
			Help: "Watches that were opened again because the one before had ended: after 30 to 60 minutes, by a failure, or because it was silent.",
		}, []string{"kind"}),
		reviews: add.NewCounterVec(prometheus.CounterOpts{
			Name: "refvol_authorizations_total",
			Help: "Answers to the question whether a service account may use an object: allowed, denied, or error.",
		}, []string{"result"}),
		leftOut: add.NewCounter(prometheus.CounterOpts{
			Name: "refvol_log_lines_left_out_total",
			Help: "Lines that were not logged because there were too many about one pod.",
		}),
		// The next two have the names that all components of Kubernetes use.
		requests: add.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "Requests to the API server, by HTTP code, method and host. The code of a request without an answer is <error>.",
		}, []string{"code", "method", "host"}),
		durations: add.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "How long requests to the API server took, except watches, by HTTP method and host.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
	m.initialize()
	return m
}

// The values of the label result.
const (
	resultChanged   = "changed"
	resultUnchanged = "unchanged"
	resultError     = "error"
	resultAllowed   = "allowed"
	resultDenied    = "denied"
)

// initialize makes every counter visible from the start, because a rate needs a zero to start with.
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
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// ObserveCall counts a call of the CSI or the registration service, with its gRPC code.
func (m *Metrics) ObserveCall(method, code string, took time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(took.Seconds())
}

// RecordWrite counts a try to write a volume's files, and the written bytes.
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

// Propagated records how long it took until a mounted volume showed a change that the process had learned about.
func (m *Metrics) Propagated(took time.Duration) { m.propagation.Observe(took.Seconds()) }

// Opened records how long it took until each file of an object was opened with its present content.
func (m *Metrics) Opened(took time.Duration) { m.opened.Observe(took.Seconds()) }

// Rewatched counts a watch, by the object's kind, that was opened again.
func (m *Metrics) Rewatched(kind volume.Kind) { m.restarts.WithLabelValues(string(kind)).Inc() }

// LogLineLeftOut counts a line that was not logged.
func (m *Metrics) LogLineLeftOut() { m.leftOut.Inc() }

// Reviewed counts the answer to an access review.
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
