package simulation

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

var errWire = errors.New("connection lost")

type call struct {
	ctx     context.Context
	method  string
	part    []string // of the path
	name    string   // of the object
	isWatch bool
	// initial, version and timeout are the options of a watch or a list.
	initial          bool
	version, timeout string
	body             []byte
	// account is the pod's account whose token it carries, or "" for the plugin's own credential.
	account string
	key     string // of its dice
}

func (s *apiServer) callOf(req *http.Request) *call {
	q := req.URL.Query()
	c := &call{
		ctx: req.Context(), method: req.Method, part: strings.Split(strings.Trim(req.URL.Path, "/"), "/"), isWatch: q.Get("watch") == "true",
		initial: q.Get("sendInitialEvents") == "true", version: q.Get("resourceVersion"), timeout: q.Get("timeoutSeconds"),
	}
	c.name, _ = strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	if req.Body != nil {
		c.body, _ = io.ReadAll(req.Body)
		req.Body.Close()
	}
	if len(c.part) == 6 {
		c.name = c.part[5]
	}
	c.key = fmt.Sprint(c.method, " ", req.URL.Path, " ", c.name, " ", c.isWatch, c.initial)
	if c.isReview() { // each question has its own dice
		h := fnv.New32a()
		_, _ = h.Write(c.body)
		c.key += fmt.Sprintf(" %x", h.Sum32())
	}
	return c
}

func (c *call) isReview() bool {
	return strings.HasSuffix(c.part[len(c.part)-1], "subjectaccessreviews")
}

// ref returns the object that a request is about, if it is about one.
func (c *call) ref() (volume.Ref, bool) {
	kind, is := map[string]volume.Kind{"configmaps": volume.ConfigMap, "secrets": volume.Secret}[c.part[min(4, len(c.part)-1)]]
	if !is {
		return volume.Ref{}, false
	}
	return volume.Ref{Kind: kind, Namespace: c.part[3], Name: c.name}, true
}

// RoundTrip serves a request.
func (s *apiServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	c := s.callOf(req)
	fault := -1
	s.set(func() {
		s.seen = append(s.seen, c.key)
		s.underWay[c.key]++
		if s.faulty {
			fault = s.w.roll(c.key+" fault", 16)
		}
	})
	defer s.set(func() { s.underWay[c.key]-- })
	if err := pauseFor(c.ctx, time.Duration(s.w.roll(c.key+" latency", 50))*time.Millisecond); err != nil {
		return nil, err
	}
	if answer, err := s.faultOf(c.ctx, fault); answer != nil || err != nil {
		return answer, err
	}
	if token, is := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer "); is {
		if c.account = s.accountOf(token); c.account == "" {
			s.w.Met("a token that is not accepted")
			return failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), nil
		}
	}
	return s.serve(c)
}

// faultOf returns the answer of a fault, or nothing.
func (s *apiServer) faultOf(ctx context.Context, fault int) (*http.Response, error) {
	reasons := map[int]metav1.StatusReason{
		http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusInternalServerError: metav1.StatusReasonInternalError,
		http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable, http.StatusForbidden: metav1.StatusReasonForbidden,
		http.StatusUnauthorized: metav1.StatusReasonUnauthorized,
	}
	switch fault {
	case 0, 1, 2, 3, 6:
		code := []int{429, 500, 503, 403, 0, 0, 401}[fault]
		answer := failure(code, reasons[code])
		if code == http.StatusTooManyRequests {
			answer.Header.Set("Retry-After", strconv.Itoa(1+s.w.roll("Retry-After", 30)))
		}
		s.w.Met(strconv.Itoa(code))
		return answer, nil
	case 4:
		s.w.Met("silence")
		if err := pauseFor(ctx, requests.AnswerTimeout); err != nil {
			return nil, err
		}
		return nil, os.ErrDeadlineExceeded
	case 5:
		s.w.Met("connection lost")
		return nil, errWire
	}
	return nil, nil
}

func (s *apiServer) serve(c *call) (*http.Response, error) {
	if ref, is := c.ref(); is {
		return s.serveObject(c, ref)
	}
	switch last := c.part[len(c.part)-1]; {
	case c.isReview():
		return s.review(c)
	case last == "selfsubjectreviews":
		review := &authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{Kind: "SelfSubjectReview", APIVersion: "authentication.k8s.io/v1"}}
		review.Status.UserInfo.Username = "system:serviceaccount:refvol:refvol"
		review.Status.UserInfo.Extra = map[string]authenticationv1.ExtraValue{
			"authentication.kubernetes.io/pod-name": {"plugin"}, "authentication.kubernetes.io/node-name": {nodeName},
		}
		return apitest.Answer(http.StatusCreated, review), nil
	case len(c.part) == 6 && c.part[4] == "pods":
		return s.getPod(c.part[3] + "/" + c.name)
	case len(c.part) >= 5 && c.part[4] == "events":
		s.w.Met("an event")
		return apitest.Answer(http.StatusCreated, &corev1.Event{TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "e"}}), nil
	case len(c.part) == 4 && c.part[2] == "nodes":
		return apitest.Answer(http.StatusOK, &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: nodeName}}), nil
	}
	panic("unexpected request " + c.key)
}

func (s *apiServer) serveObject(c *call, ref volume.Ref) (*http.Response, error) {
	if s.w.mode.identity == authz.IdentityPod && !s.mayRead(c.account, ref) {
		s.w.Met("a pod may not read")
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden), nil
	}
	fails := false
	s.set(func() { fails = s.failing == ref })
	switch {
	case fails:
		s.w.Met("an object that can't be read")
		return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError), nil
	case c.isWatch:
		return s.watch(c, ref)
	case len(c.part) == 6:
		return s.get(ref)
	}
	return s.list(c, ref)
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *apiServer) review(c *call) (*http.Response, error) {
	obj, _, err := protobuf.NewSerializer(s.scheme, s.scheme).Decode(c.body, nil, nil)
	if err != nil {
		return nil, err
	}
	switch review := obj.(type) {
	case *authorizationv1.SubjectAccessReview:
		account := strings.TrimPrefix(review.Spec.User, accountPrefix)
		review.Status.Allowed = s.mayRead(account, refOf(review.Spec.ResourceAttributes))
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		return apitest.Answer(http.StatusCreated, review), nil
	case *authorizationv1.SelfSubjectAccessReview:
		review.Status.Allowed = c.account == "" || s.mayRead(c.account, refOf(review.Spec.ResourceAttributes))
		review.TypeMeta = metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		return apitest.Answer(http.StatusCreated, review), nil
	}
	panic(fmt.Sprintf("unexpected review %T", obj))
}

func refOf(about *authorizationv1.ResourceAttributes) volume.Ref {
	kind := volume.ConfigMap
	if about.Resource == "secrets" {
		kind = volume.Secret
	}
	return volume.Ref{Kind: kind, Namespace: about.Namespace, Name: about.Name}
}

// list answers from the cache, which may be old.
func (s *apiServer) list(c *call, ref volume.Ref) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.Met("a list")
	if asked, _ := strconv.Atoi(c.version); asked > s.cacheLocked() {
		return tooLarge(), nil
	}
	items := []any{}
	if obj := s.At(ref, s.cacheLocked()); obj != nil {
		items = append(items, obj)
	}
	return apitest.Answer(http.StatusOK, map[string]any{
		"kind": string(ref.Kind) + "List", "apiVersion": "v1", "items": items, "metadata": map[string]string{"resourceVersion": strconv.Itoa(s.cacheLocked())},
	}), nil
}

func (s *apiServer) get(ref volume.Ref) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.Met("a get")
	if obj := s.At(ref, s.cacheLocked()); obj != nil {
		return apitest.Answer(http.StatusOK, obj), nil
	}
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound), nil
}

func (s *apiServer) getPod(name string) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[name]; p != nil {
		s.w.Met("a pod is read")
		return apitest.Answer(http.StatusOK, p), nil
	}
	return failure(http.StatusNotFound, metav1.StatusReasonNotFound), nil
}

func tooLarge() *http.Response {
	return failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge})
}

func failure(code int, reason metav1.StatusReason, causes ...metav1.StatusCause) *http.Response {
	return apitest.Answer(code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code),
		Details: &metav1.StatusDetails{Causes: causes},
	})
}
