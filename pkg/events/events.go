// Package events writes events about pods' volumes to the API server.
//
// It owns the recorder and its rate. It must not know what the events are about.
package events

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

// maxMessage is the longest message of an event in bytes that all tools show. It is the API's
// limit for events of events.k8s.io/v1.
const maxMessage = 1024

// Events creates and patches the events of one namespace. A client-go client is one.
type Events interface {
	Create(ctx context.Context, event *corev1.Event, opts metav1.CreateOptions) (*corev1.Event, error)
	Patch(ctx context.Context, name string, form types.PatchType, patch []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Event, error)
}

// Recorder tells pods' authors what is wrong with their pods' volumes. It is safe for
// concurrent use. Its goroutines are client-go's; Shutdown ends them.
type Recorder struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// New returns a Recorder whose logger is that of ctx. events returns the events of a namespace. component and node are
// named as the source of each event.
func New(ctx context.Context, events func(namespace string) Events, component, node string) *Recorder {
	// The events of the last calls must be written after the end of the program's context. The
	// broadcaster logs each try with the whole event: the sink logs instead.
	broadcaster := record.NewBroadcaster(record.WithContext(klog.NewContext(context.WithoutCancel(ctx), logr.Discard())))
	broadcaster.StartRecordingToSink(&sink{events: events, logger: klog.FromContext(ctx), failed: map[metav1.StatusReason]time.Time{}})
	// The scheme would tell the kind of an object. Warn names it.
	return &Recorder{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: node}),
	}
}

// Warn records a warning about a pod. It returns at once. An event that can't be written, or
// is one of too many, is lost. The message must hold no value of an object. It is cut off at
// maxMessage bytes.
func (r *Recorder) Warn(pod volume.Pod, reason, message string) {
	if len(message) > maxMessage {
		const more = "..."
		message = strings.ToValidUTF8(message[:maxMessage-len(more)], "") + more
	}
	of := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	r.recorder.Event(of, corev1.EventTypeWarning, reason, message)
}

// Shutdown ends the Recorder's goroutines. Events that are not written yet are lost.
func (r *Recorder) Shutdown() { r.broadcaster.Shutdown() }

// writeTime bounds a request, since one goroutine writes all events.
const writeTime = 30 * time.Second

// failureTime without a failure makes the next one of the same kind news again.
const failureTime = 10 * time.Minute

// sink is where the broadcaster sends events. It logs a kind of failure once, not for each try.
type sink struct {
	events func(namespace string) Events
	logger klog.Logger

	mu sync.Mutex
	// failed is when an event last failed for a reason, Unknown if the API server can't be reached.
	failed map[metav1.StatusReason]time.Time
}

// Create implements record.EventSink.
func (s *sink) Create(event *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	created, err := s.events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	s.note(err)
	return created, err
}

// Patch implements record.EventSink.
func (s *sink) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	patched, err := s.events(event.Namespace).Patch(ctx, event.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	s.note(err)
	return patched, err
}

// note logs why an event can't be written. An event that has expired is created again, and a
// namespace that is being deleted takes none.
func (s *sink) note(err error) {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	now, reason := time.Now(), apierrors.ReasonForError(err)
	s.mu.Lock()
	last := s.failed[reason]
	s.failed[reason] = now
	s.mu.Unlock()
	if now.Sub(last) > failureTime {
		s.logger.Error(err, "An event on a pod can't be written; later ones may be lost too")
	}
}

// Update implements record.EventSink. The broadcaster patches instead.
func (*sink) Update(*corev1.Event) (*corev1.Event, error) {
	return nil, errors.New("events are not updated, but patched")
}
