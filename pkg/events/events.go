// Package events writes events about pods' volumes to the API server.
//
// It owns the recorder and its rate. It must not know what the events are about.
package events

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

// maxMessage is the longest message of an event that all tools show, in bytes. It is the API's limit for events of events.k8s.io/v1.
const maxMessage = 1024

// Events creates and patches the events of one namespace. A client-go client implements it.
type Events interface {
	Create(ctx context.Context, event *corev1.Event, opts metav1.CreateOptions) (*corev1.Event, error)
	Patch(ctx context.Context, name string, form types.PatchType, patch []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Event, error)
}

// Recorder reports problems with pods' volumes to the authors of the pods. It is safe for concurrent use. Its goroutines are client-go's;
// Shutdown ends them.
type Recorder struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// New returns a Recorder that logs with the logger of ctx. events returns the events of a namespace. component and node are the source of
// each event.
func New(ctx context.Context, events func(namespace string) Events, component, node string) *Recorder {
	// The events of the last calls must be written after the end of the program's context. The broadcaster would log each try with the
	// whole event, so its log is discarded, and the sink logs instead.
	broadcaster := record.NewBroadcaster(record.WithContext(klog.NewContext(context.WithoutCancel(ctx), logr.Discard())))
	broadcaster.StartRecordingToSink(&sink{events: events, logger: klog.FromContext(ctx), failed: rate.Sometimes{Interval: failureTime}})
	// A scheme would only be needed to find the kind of an object. Warn sets the kind itself.
	return &Recorder{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: node}),
	}
}

// Warn records a warning about a pod. It returns at once. An event is lost if it cannot be written, or if there are too many. The message
// must hold no value of an object. It is cut off after maxMessage bytes.
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

// writeTimeout limits a request, because one goroutine writes all events.
const writeTimeout = 30 * time.Second

// failureTime is the shortest time between two logged failures. Each event is tried a dozen times.
const failureTime = 10 * time.Minute

// sink receives the events of the broadcaster.
type sink struct {
	events func(namespace string) Events
	logger klog.Logger
	failed rate.Sometimes
}

// Create implements record.EventSink.
func (s *sink) Create(event *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	created, err := s.events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	s.logFailure(err)
	return created, err
}

// Patch implements record.EventSink.
func (s *sink) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	patched, err := s.events(event.Namespace).Patch(ctx, event.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	s.logFailure(err)
	return patched, err
}

// logFailure logs why an event could not be written. It ignores an event that has expired, which is created again, and a namespace that is
// being deleted.
func (s *sink) logFailure(err error) {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	s.failed.Do(func() { s.logger.Error(err, "An event on a pod can't be written; others may be lost too") })
}

// Update implements record.EventSink. It is not used, because the broadcaster patches.
func (*sink) Update(*corev1.Event) (*corev1.Event, error) {
	return nil, errors.New("events are not updated, but patched")
}
