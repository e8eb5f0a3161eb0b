package metrics

import (
	"context"
	"net/url"
	"time"

	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/component-base/metrics"
)

// client has the metrics of requests to the API server, under the names that all components of
// Kubernetes use.
type client struct {
	requests  *metrics.CounterVec
	durations *metrics.HistogramVec
}

func newClient() *client {
	return &client{
		requests: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "rest_client_requests_total", StabilityLevel: stability,
			Help: "Requests to the API server, by HTTP code, method and host. The code of a request without an answer is <error>.",
		}, []string{"code", "method", "host"}),
		durations: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Name: "rest_client_request_duration_seconds", StabilityLevel: stability,
			Help:    "How long requests to the API server took but watches, by HTTP method and host.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
}

// Client returns the hooks with which client-go tells of requests. They are for
// clientmetrics.Register, which takes those of the first caller in a process.
func (m *Metrics) Client() clientmetrics.RegisterOpts {
	return clientmetrics.RegisterOpts{RequestResult: (*requestResult)(m.client), RequestLatency: (*requestLatency)(m.client)}
}

type requestResult client

// Increment counts a request.
func (r *requestResult) Increment(_ context.Context, code, method, host string) {
	r.requests.WithLabelValues(code, method, host).Inc()
}

type requestLatency client

// Observe counts how long a request took. The path is left out: it names the object.
func (r *requestLatency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	r.durations.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}
