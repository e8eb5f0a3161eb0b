package metrics

import (
	"context"
	"net/url"
	"time"

	clientmetrics "k8s.io/client-go/tools/metrics"
)

// Client returns the hooks with which client-go reports requests. Pass them to clientmetrics.Register, which uses those of the first caller
// in a process.
func (m *Metrics) Client() clientmetrics.RegisterOpts {
	return clientmetrics.RegisterOpts{RequestResult: (*requestResult)(m), RequestLatency: (*requestLatency)(m)}
}

type requestResult Metrics

// Increment counts a request.
func (r *requestResult) Increment(_ context.Context, code, method, host string) {
	r.requests.WithLabelValues(code, method, host).Inc()
}

type requestLatency Metrics

// Observe records how long a request took. It leaves out the path, which names the object.
func (r *requestLatency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	r.durations.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}
