package controlplane

import (
	"bytes"
	"context"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Request is what requests are counted by.
type Request struct {
	// Verb is the API's verb in capitals: GET, LIST, WATCH, POST, PUT...
	Verb string
	// Resource is the plural name of the resource, as in a URL.
	Resource string
}

// OpenWatches returns how many watches the API server holds open for a resource
// ("configmaps"), over all namespaces and clients, its own included: compare with a
// count taken before.
func (c *ControlPlane) OpenWatches(ctx context.Context, resource string) (int, error) {
	n := 0
	err := c.eachSample(ctx, "apiserver_longrunning_requests", func(labels map[string]string, value int) {
		if labels["verb"] == "WATCH" && labels["group"] == "" && labels["resource"] == resource {
			n += value
		}
	})
	return n, err
}

// Requests returns how many requests of each kind the API server has answered since
// it started, its own included. A watch counts when it ends.
func (c *ControlPlane) Requests(ctx context.Context) (map[Request]int, error) {
	total := make(map[Request]int)
	err := c.eachSample(ctx, "apiserver_request_total", func(labels map[string]string, value int) {
		total[Request{Verb: labels["verb"], Resource: labels["resource"]}] += value
	})
	return total, err
}

// Refusals returns how many requests the API server has answered with 429 (Too Many
// Requests) since it started.
func (c *ControlPlane) Refusals(ctx context.Context) (int, error) {
	answered, rejected := 0, 0
	err := c.eachSample(ctx, "apiserver_request_total", func(labels map[string]string, value int) {
		if labels["code"] == "429" {
			answered += value
		}
	})
	if err != nil {
		return 0, err
	}
	err = c.eachSample(ctx, "apiserver_flowcontrol_rejected_requests_total", func(_ map[string]string, value int) {
		rejected += value
	})
	// Both count what priority and fairness refuses.
	return max(answered, rejected), err
}

// eachSample calls f with every sample of one metric family of the API server.
func (c *ControlPlane) eachSample(ctx context.Context, family string, f func(labels map[string]string, value int)) error {
	text, err := c.client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("read the API server's metrics: %w", err)
	}
	var lines bytes.Buffer
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(family+"{")) {
			lines.Write(line)
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&lines)
	if err != nil {
		return fmt.Errorf("read the API server's %s: %w", family, err)
	}
	for _, sample := range families[family].GetMetric() {
		labels := map[string]string{}
		for _, pair := range sample.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		f(labels, int(sample.GetUntyped().GetValue()))
	}
	return nil
}
