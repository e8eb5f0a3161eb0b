package rights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apiServer answers reviews: it allows what is allowed, and fails with err.
type apiServer struct {
	mu      sync.Mutex
	allowed []string
	err     error
	asked   []string
}

func (s *apiServer) Create(_ context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := review.Spec.ResourceAttributes
	what := fmt.Sprint(a.Verb, " ", a.Resource, a.Namespace)
	s.asked = append(s.asked, what)
	review.Status.Allowed = slices.Contains(s.allowed, what)
	return review, s.err
}

// answer has the API server give other answers, and returns how often it was asked until now.
func (s *apiServer) answer(err error, allowed ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.allowed = err, allowed
	return len(s.asked)
}

// running returns a Checker of the account that runs until the test ends, and its log.
func running(t *testing.T, s *apiServer) (*Checker, *Refusals, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))))
	t.Cleanup(cancel)
	refusals := NewRefusals()
	c, err := NewOfAccount("plugin", s, OfObjects("", []string{"list", "watch"}), refusals)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(); !errors.Is(err, errUnknown) {
		t.Errorf("at first: %v", err)
	}
	go c.Run(ctx)
	return c, refusals, &log
}

// after waits until d has passed and everything rests.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

const (
	all   = "list configmaps,watch configmaps,list secrets,watch secrets"
	lacks = "the plugin's account lacks rights in all namespaces that --identity=plugin needs: watch of secrets: grant them, or choose another identity"
)

// wantReady wants that Ready says this, "" for nothing, and that only then a right is missing.
func wantReady(t *testing.T, c *Checker, want string, missing ...string) {
	t.Helper()
	got := ""
	if err := c.Ready(); err != nil {
		got = err.Error()
	}
	if got != want || !slices.Equal(c.Missing(), missing) {
		t.Errorf("got %q, missing %q, want %q, %q", got, c.Missing(), want, missing)
	}
}

// TestRun asks until everything is allowed, tells each problem once, and then asks every ten minutes. A failure
// of the question says nothing then.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{err: errors.New("connection refused")}
		c, _, log := running(t, s)
		ready := make(chan struct{})
		go func() {
			c.Await(t.Context())
			close(ready)
		}()
		after(10 * time.Minute)
		wantReady(t, c, "ask whether the plugin may list configmaps: connection refused")
		if n := s.answer(nil, "list configmaps", "watch configmaps", "list secrets"); n < 10 || n > 40 {
			t.Errorf("%d requests in ten minutes", n)
		}
		after(2 * lastRetry)
		wantReady(t, c, lacks, "watch of secrets")
		s.answer(errors.New("not any more"))
		after(2 * lastRetry)
		wantReady(t, c, lacks, "watch of secrets")
		select {
		case <-ready:
			t.Error("Await has returned")
		default:
		}
		s.answer(nil, strings.Split(all, ",")...)
		after(2 * lastRetry)
		wantReady(t, c, "")
		<-ready
		asked := s.answer(nil, strings.Split(all, ",")...)
		after(time.Hour)
		if n := s.answer(errors.New("not any more")) - asked; n < 4*5 || n > 4*6 {
			t.Errorf("%d requests in an hour", n)
		}
		after(time.Hour)
		wantReady(t, c, "")
		s.answer(nil, "list configmaps", "watch configmaps", "list secrets")
		after(time.Hour)
		wantReady(t, c, lacks, "watch of secrets")
		if lines := strings.Count(log.String(), "\n"); lines != 4 || strings.Count(log.String(), "Not ready: the plugin can't work as itself") != 3 {
			t.Errorf("logged\n%s", log)
		}
	})
}

// TestRefused asks again after a refusal, at most every ten seconds.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{}
		s.answer(nil, strings.Split(all, ",")...)
		c, refusals, _ := running(t, s)
		after(time.Minute)
		refused := refusals.Wrap(answer(http.StatusForbidden, ""))
		s.answer(nil, "list configmaps", "watch configmaps", "list secrets")
		send(t, refused, "")
		synctest.Wait()
		wantReady(t, c, lacks, "watch of secrets")
		s.answer(nil, strings.Split(all, ",")...)
		after(2 * firstRetry)
		wantReady(t, c, "")
		asked := s.answer(nil, strings.Split(all, ",")...)
		for range 60 { // a minute of refusals
			send(t, refused, "")
			after(time.Second)
		}
		if n := s.answer(nil) - asked; n < 4*5 || n > 4*7 {
			t.Errorf("%d requests in a minute of refusals", n)
		}
	})
}

// roundTripper answers requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer returns an API server that has one answer.
func answer(code int, body string) http.RoundTripper {
	return roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body))}, nil
	})
}

// send sends a request that impersonates a user, "" for none, and returns the body of the answer.
func send(t *testing.T, by http.RoundTripper, user string) string {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if user != "" {
		request.Header.Set("Impersonate-User", user)
	}
	response, err := by.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestRefusals hears of refusals of the account, and of no other answer. Bodies stay whole.
func TestRefusals(t *testing.T) {
	const node, self = "system:node:n1", "system:serviceaccount:refvol-system:refvol-plugin"
	asNode := `secrets "db" is forbidden: User "` + node + `" cannot get resource "secrets"`
	asSelf := `nodes "` + node + `" is forbidden: User "` + self + `" cannot impersonate:associated-node resource "nodes"`
	for name, test := range map[string]struct {
		code int
		user string
		body string
		want bool
	}{
		"refused":                        {403, "", "no", true},
		"not found":                      {404, "", "no", false},
		"no token":                       {401, "", "no", false},
		"the node":                       {403, node, asNode, false},
		"the node, in JSON":              {403, node, strconv.Quote(asNode), false},
		"the impersonation":              {403, node, asSelf, true},
		"the impersonation, in JSON":     {403, node, strconv.Quote(asSelf), true},
		"another node":                   {403, node + "0", asNode, true},
		"a long answer":                  {403, node, strings.Repeat("x", 3*maxText), true},
		"itself, in the name of another": {403, "", asNode, true},
	} {
		t.Run(name, func(t *testing.T) {
			refusals := NewRefusals()
			for range 2 {
				if got := send(t, refusals.Wrap(answer(test.code, test.body)), test.user); got != test.body {
					t.Errorf("the body is %q, want %q", got, test.body)
				}
			}
			if got := len(refusals.heard) > 0; got != test.want {
				t.Errorf("heard: %t, want %t", got, test.want)
			}
		})
	}
}

// TestRunEnds: a Run that is stopped ends, also in a pause, and so does Await.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{nil, errors.New("no")} {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			c, newErr := New(Options{As: "x", Needs: []string{"x"}, Refusals: NewRefusals(), Ask: func(context.Context) ([]string, error) { return nil, err }})
			if newErr != nil {
				t.Fatal(newErr)
			}
			c.Run(ctx)
			c.Await(ctx)
		}
	})
}

func TestOptions(t *testing.T) {
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "Required value") {
		t.Errorf("got %v", err)
	}
}

func TestOfObjects(t *testing.T) {
	s := &apiServer{}
	lacking, err := Missing(t.Context(), s, OfObjects("as:", []string{"get", "watch"}))
	if want := []string{"as:get of configmaps", "as:watch of configmaps", "as:get of secrets", "as:watch of secrets"}; err != nil || !slices.Equal(lacking, want) {
		t.Errorf("got %q, %v, want %q", lacking, err, want)
	}
}
