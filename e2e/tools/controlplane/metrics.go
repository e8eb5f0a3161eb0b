package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
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
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, family+"{") {
			continue
		}
		labels, value, err := parseSample(line)
		if err != nil {
			return err
		}
		f(labels, value)
	}
	return lines.Err()
}

// parseSample reads one line of the text format: name{a="b",c="d"} 12. Label values
// with quotes in them do not occur in the families read here.
func parseSample(line string) (map[string]string, int, error) {
	head, number, ok := strings.Cut(line, "} ")
	if !ok {
		return nil, 0, fmt.Errorf("not a metric sample: %q", line)
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("value of %q: %w", line, err)
	}
	labels := make(map[string]string)
	_, pairs, _ := strings.Cut(head, "{")
	for pair := range strings.SplitSeq(strings.TrimSuffix(pairs, `"`), `",`) {
		name, v, ok := strings.Cut(pair, `="`)
		if !ok {
			return nil, 0, fmt.Errorf("labels of %q", line)
		}
		labels[name] = v
	}
	return labels, int(value), nil
}
