package simulation

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/test/bufconn"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/internal/apitest"
	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/volume"
)

// startTime is how long an API server that starts knows no role, and refuses everybody.
const startTime = 4 * time.Second

// apiServer is an API server in memory: ConfigMaps, Secrets, pods, access reviews, events, and the node. It is safe for concurrent use.
type apiServer struct {
	w      *world
	scheme *runtime.Scheme
	// http serves it over HTTP/2 through listener, or both are nil.
	http     *httptest.Server
	listener *bufconn.Listener

	mu sync.Mutex
	apitest.Objects
	wroteAt map[int]time.Duration // when each resourceVersion was given
	pods    map[string]*corev1.Pod
	granted map[right]bool
	// immutable are the names of objects whose newest version is immutable.
	immutable map[string]bool
	// wake is closed at each change. cuts counts the times at which all streams were cut, and open the open streams.
	wake       chan struct{}
	cuts, open int
	// behind is the resourceVersion of its cache, or 0 for the newest. compacted is the oldest version from which a watch can continue.
	behind, compacted int
	// faulty means that requests fail now and then. failing is an object that can't be read, as while a KMS is away.
	faulty  bool
	failing volume.Ref
	// startingUntil is when it knows the roles.
	startingUntil time.Time
	// seen are the requests since takeSeen, and underWay those that have no answer yet, with their number.
	seen     []string
	underWay map[string]int
}

type right struct {
	account string
	ref     volume.Ref
}

func newAPIServer(w *world) *apiServer {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, authorizationv1.AddToScheme, authenticationv1.AddToScheme} {
		must(add(scheme))
	}
	return &apiServer{w: w, scheme: scheme, Objects: apitest.Objects{RV: 1000, Changes: map[volume.Ref][]apitest.Change{}}, wroteAt: map[int]time.Duration{}, pods: map[string]*corev1.Pod{}, granted: map[right]bool{}, immutable: map[string]bool{}, underWay: map[string]int{}, wake: make(chan struct{})}
}

func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

type write struct {
	// rollout is the annotation of a staged change, or "".
	rollout string
	// revision is the annotation of a set, and canary that of a canary, or "".
	revision  string
	canary    string
	immutable bool
	size      int
}

// put creates or updates an object. An immutable one is created again.
func (s *apiServer) put(name string, what write) {
	ref := s.w.objects[name]
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.At(ref, s.RV)
	if old != nil && s.immutable[name] {
		s.removeLocked(name, old)
		old = nil
	}
	meta := metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(fmt.Sprintf("uid-%09d", s.RV+1)), Generation: 1}
	kind := watch.Added
	if old != nil {
		kind, meta.UID, meta.Generation = watch.Modified, old.GetUID(), old.GetGeneration()+1
	}
	share := 100
	meta.Annotations = map[string]string{}
	if name == canaryName {
		what.immutable = false // nobody would watch it any more
	}
	if what.revision != "" {
		meta.Annotations[volume.RevisionAnnotation] = what.revision
	}
	if what.rollout != "" {
		meta.Annotations[volume.RolloutAnnotation] = what.rollout
		if !what.immutable {
			share, _ = volume.ParseShare(what.rollout)
		}
	}
	if what.canary != "" {
		meta.Annotations[volume.CanaryAnnotation] = what.canary
	}
	if name == canaryName {
		share = 0
		if what.canary != "" {
			share, _ = volume.ParseShare(what.canary)
		}
	}
	s.immutable[name] = what.immutable
	version := history.Version{UID: string(meta.UID), N: int(meta.Generation)}
	data := dataOf(name, version, what.size)
	var obj metav1.Object
	if ref.Kind == volume.ConfigMap {
		obj = &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: meta, Data: data, Immutable: &what.immutable}
	} else {
		secret := &corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: meta, Data: map[string][]byte{}, Immutable: &what.immutable}
		for key, value := range data {
			secret.Data[key] = []byte(value)
		}
		obj = secret
	}
	s.w.Add(history.Event{Kind: history.Wrote, Object: name, Version: version, Share: share, Revision: what.revision, IsImmutable: what.immutable, IsLarge: what.size > mebibyte/2})
	s.record(ref, kind, obj)
}

func (s *apiServer) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj := s.At(s.w.objects[name], s.RV); obj != nil {
		s.removeLocked(name, obj)
	}
}

func (s *apiServer) removeLocked(name string, obj metav1.Object) {
	s.w.Add(history.Event{Kind: history.Removed, Object: name})
	s.record(s.w.objects[name], watch.Deleted, obj.(runtime.Object).DeepCopyObject().(metav1.Object))
}

func (s *apiServer) record(ref volume.Ref, kind watch.EventType, obj metav1.Object) {
	s.Add(ref, kind, obj)
	s.wroteAt[s.RV] = s.w.Now()
	s.wakeLocked()
}

func (s *apiServer) wakeLocked() {
	close(s.wake)
	s.wake = make(chan struct{})
}

func (s *apiServer) now(name string) metav1.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.At(s.w.objects[name], s.RV)
}

// versionAt returns the version that an object got with a resourceVersion.
func (s *apiServer) versionAt(ref volume.Ref, rv string) history.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.Changes[ref] {
		if c.Object.GetResourceVersion() == rv {
			return history.Version{UID: string(c.Object.GetUID()), N: int(c.Object.GetGeneration())}
		}
	}
	return history.Version{}
}

func (s *apiServer) cut() { s.set(func() { s.cuts++; s.wakeLocked() }) }

// compact ends all streams, and none can continue where it was.
func (s *apiServer) compact() { s.set(func() { s.compacted = s.RV; s.cuts++; s.wakeLocked() }) }

// restart cuts all streams and comes back with a cache that is older by some changes, and without roles. It catches up with heal.
func (s *apiServer) restart(older int) {
	s.set(func() {
		s.cuts++
		s.behind = max(s.RV-older, 1000)
		s.w.Add(history.Event{Kind: history.Lagging, Begin: s.wroteAt[s.behind] - 1}) // other changes may have the same time
		s.startingUntil = time.Now().Add(startTime)
		s.w.Add(history.Event{Kind: history.Suspended, End: s.w.Now() + startTime})
		s.wakeLocked()
	})
}

func (s *apiServer) heal() {
	s.set(func() {
		s.w.Add(history.Event{Kind: history.CaughtUp})
		s.behind, s.faulty, s.failing, s.startingUntil = 0, false, volume.Ref{}, time.Time{}
		s.wakeLocked()
	})
}

// fail makes requests fail now and then until heal.
func (s *apiServer) fail() {
	s.set(func() { s.faulty = true })
	s.w.Add(history.Event{Kind: history.Faulty})
}

// failAt makes one object unreadable until heal.
func (s *apiServer) failAt(name string) {
	s.set(func() { s.failing = s.w.objects[name]; s.cuts++; s.wakeLocked() })
	s.w.Add(history.Event{Kind: history.Faulty})
}

func (s *apiServer) cacheLocked() int {
	if s.behind > 0 {
		return s.behind
	}
	return s.RV
}

// grant gives an account of the namespace a right to an object, or takes it.
func (s *apiServer) grant(account, name string, yes bool) {
	kind := history.Revoked
	if yes {
		kind = history.Granted
	}
	s.set(func() {
		if r := (right{account, s.w.objects[name]}); s.granted[r] != yes {
			s.granted[r] = yes
			s.w.Add(history.Event{Kind: kind, Account: account, Object: name})
		}
	})
}

func (s *apiServer) mayRead(account string, ref volume.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.startingUntil) {
		s.w.Met("a review while roles are unknown")
		return false
	}
	return s.granted[right{account, ref}]
}

func (s *apiServer) takeSeen() (seen []string) {
	s.set(func() { seen, s.seen = s.seen, nil })
	return seen
}

// unanswered returns the requests that have no answer yet, but for those that no volume owns: an event that is being written, the read of the
// node's TTL, and the question who the plugin is.
func (s *apiServer) unanswered() (keys []string) {
	s.set(func() {
		for key, n := range s.underWay {
			if n > 0 && !regexp.MustCompile("/events|/nodes/|/selfsubjectreviews").MatchString(key) {
				keys = append(keys, key)
			}
		}
	})
	return keys
}

const accountPrefix = "system:serviceaccount:" + namespace + ":"

// token returns a token of a pod as the kubelet passes it: for ten minutes or, while there are faults, for less than the time to the next
// publish.
func (s *apiServer) token(uid types.UID, account string) string {
	lasts := 10 * time.Minute
	s.set(func() {
		if s.faulty {
			lasts = 40 * time.Second
		}
	})
	expires := time.Now().Add(lasts)
	claims := fmt.Sprintf(`{"sub":%q,"exp":%d,"kubernetes.io":{"pod":{"uid":%q}}}`, accountPrefix+account, expires.Unix(), uid)
	token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
	text, err := json.Marshal(map[string]any{"": map[string]any{"token": token, "expirationTimestamp": expires}})
	must(err)
	return string(text)
}

// accountOf returns the account of a token, or "" if the token has expired or its pod is gone.
func (s *apiServer) accountOf(token string) string {
	var claims struct {
		Sub        string
		Exp        int64
		Kubernetes struct{ Pod struct{ UID types.UID } } `json:"kubernetes.io"`
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	must(err)
	must(json.Unmarshal(text, &claims))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if p.UID == claims.Kubernetes.Pod.UID && time.Now().Unix() < claims.Exp {
			return strings.TrimPrefix(claims.Sub, accountPrefix)
		}
	}
	return ""
}
