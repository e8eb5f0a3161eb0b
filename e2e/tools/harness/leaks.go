package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/internal/leak"
)

// ShownLeaks searches for values and tokens in what the plugin has shown to who asked: its answers to calls, and
// while the process runs, its arguments, its environment and what it serves over HTTP.
func (p *Plugin) ShownLeaks(ctx context.Context) error {
	errs := []error{p.processLeaks()}
	p.leakedBy.Range(func(_, leak any) bool {
		err, ok := leak.(error)
		errs = append(errs, err)
		return ok
	})
	for _, servesAt := range []func() (string, error){p.HTTPAddress, p.StatusAddress} {
		if p.proc.Ended() {
			break
		}
		address, err := servesAt()
		if address != "" {
			err = errors.Join(err, HTTPLeaks(ctx, address))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// DiskLeaks searches for values and tokens in every file below the plugin's directory: its log and whatever else it
// left, but not in volumes.
func (p *Plugin) DiskLeaks() error { return leak.CheckFiles(p.opts.Dir) }

// intercept makes a call and searches all that came back.
func (p *Plugin) intercept(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var header, trailer metadata.MD
	err := invoke(ctx, method, req, reply, conn, append(slices.Clone(opts), grpc.Header(&header), grpc.Trailer(&trailer))...)
	text := fmt.Sprint(reply, header, trailer, err, status.Convert(err).Proto())
	if leak := leak.Check("the answer to "+path.Base(method), text); leak != nil {
		p.leakedBy.Store(method, leak)
	}
	return err
}

// processLeaks searches what other processes see of this one.
func (p *Plugin) processLeaks() error {
	var errs []error
	for _, file := range []string{"cmdline", "environ"} {
		name := fmt.Sprintf("/proc/%d/%s", p.PID(), file)
		data, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has ended
		}
		errs = append(errs, err)
		for entry := range strings.SplitSeq(string(data), "\x00") {
			// What is in this process's own environment is not the plugin's doing.
			if !slices.Contains(os.Environ(), entry) {
				errs = append(errs, leak.Check(name, entry))
			}
		}
	}
	return errors.Join(errs...)
}

// HTTPAddress returns where this run of the plugin serves HTTP, "" for nowhere. For this and the next two, it must
// have started with a log of its own lines.
func (p *Plugin) HTTPAddress() (string, error) { return p.servesAt("http-address") }

// ProfilingAddress returns where it serves its profiles, "" for nowhere.
func (p *Plugin) ProfilingAddress() (string, error) { return p.servesAt("profiling-address") }

// StatusAddress returns where it serves its status, "" for nowhere.
func (p *Plugin) StatusAddress() (string, error) { return p.servesAt("status-address") }

func (p *Plugin) servesAt(flag string) (string, error) {
	log, err := p.runLog()
	// The line by which the plugin says so, as text or JSON.
	found := regexp.MustCompile(`Serving HTTP.*?"` + flag + `".*?address"?[=:]"([^"]+)"`).FindSubmatch(log)
	if found == nil {
		return "", err
	}
	return string(found[1]), nil
}

// HTTPLeaks searches all that may be served at an address, and fails if nothing is: metrics, the status, probes, and
// what Go's and Kubernetes' own handlers show of a process.
func HTTPLeaks(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var errs []error
	for _, path := range []string{
		"/metrics", "/status", "/healthz?verbose", "/readyz?verbose", "/livez?verbose", "/configz", "/statusz", "/flagz", "/debug/vars",
		"/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/debug/flags/v", "/", "/none",
	} {
		answer, err := Get(ctx, "http://"+address+path)
		errs = append(errs, err, leak.Check(path, fmt.Sprint(answer)))
	}
	return errors.Join(errs...)
}

// Answer is what a server answers to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// Get fetches a URL over a connection of its own, so that none is left open.
func Get(ctx context.Context, url string) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Answer{}, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, string(body)}, err
}

// EventLeaks searches the events of a namespace, "" for all, and returns how many there were.
func EventLeaks(ctx context.Context, client kubernetes.Interface, namespace string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("search the events: %w", err)
	}
	var errs []error
	for i := range events.Items {
		event := &events.Items[i]
		errs = append(errs, leak.CheckObject(fmt.Sprintf("event %s/%s", event.Namespace, event.Name), event))
	}
	return len(events.Items), errors.Join(errs...)
}
