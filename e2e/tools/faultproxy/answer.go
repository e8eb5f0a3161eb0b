package faultproxy

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// initialEventsEnd is in the bookmark that ends the initial state of a watch.
	initialEventsEnd = metav1.InitialEventsAnnotationKey
	maxFrame         = 16 << 20
)

// CorruptKey is that of the object that SecretsFail names in each answer, whichever Secret is asked for.
const CorruptKey = "/registry/secrets/tenant-a/payroll-2f9c"

// refusal returns the error that fault has requests like r answered with, or nil.
func refusal(fault Fault, r Request) *apierrors.StatusError {
	switch {
	case fault == TooManyRequests:
		return apierrors.NewTooManyRequests("the server is told to be busy", 0)
	case fault == Unavailable:
		return apierrors.NewServiceUnavailable("the server is told to be unavailable")
	case fault == Unauthorized:
		return apierrors.NewUnauthorized("the server is told to know nobody")
	case fault == ServerError:
		return apierrors.NewInternalError(fmt.Errorf("the server is told to fail"))
	case fault == SecretsFail && r.Resource == "secrets" && isRead(r.Verb):
		return apierrors.NewInternalError(fmt.Errorf("corrupt object: Key: %q", CorruptKey))
	case (fault == Gone || fault == Stale) && r.continues():
		return apierrors.NewResourceExpired("too old resource version")
	case fault == TooLarge && isRead(r.Verb):
		return tooLarge()
	case fault == Forbidden && isRead(r.Verb):
		return apierrors.NewForbidden(schema.GroupResource{Resource: r.Resource}, r.Name,
			fmt.Errorf("User %q cannot %s resource %q in API group \"\" in the namespace %q: no relationship found between node and this object", r.User, strings.ToLower(r.Verb), r.Resource, r.Namespace))
	}
	return nil
}

func isRead(verb string) bool { return verb == "LIST" || verb == "WATCH" || verb == http.MethodGet }

// noWatchList is what a server says that doesn't know how to begin a watch with the
// state.
func noWatchList() *apierrors.StatusError {
	return apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
}

func tooLarge() *apierrors.StatusError {
	err := apierrors.NewTimeoutError("Too large resource version", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

// answer writes a Status, in JSON, which every client takes. Where the server is busy or
// unavailable, it says when to try again.
func answer(w http.ResponseWriter, err *apierrors.StatusError, retryAfter string) {
	status := err.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	if status.Code == http.StatusTooManyRequests || status.Code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
		// The API server says it in both places. What is no number has no place in the body.
		if seconds, err := strconv.ParseInt(retryAfter, 10, 32); err == nil {
			status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(seconds)}
		}
	}
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// badGateway answers as a load balancer does.
func badGateway(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = io.WriteString(w, "<html><body>502 Bad Gateway</body></html>\n")
}

// readFrame returns the next frame of a watch in protobuf: four bytes of length, and
// an event of that length.
func readFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes: not a watch in protobuf", size)
	}
	frame := make([]byte, 4+size)
	copy(frame, head)
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}

// goneFrame returns the frame of an event that says that the watch's resourceVersion
// has expired.
func goneFrame() ([]byte, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", runtime.ContentTypeProtobuf)
	}
	status := apierrors.NewResourceExpired("too old resource version").Status()
	encoded, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"}), &status)
	if err != nil {
		return nil, fmt.Errorf("encode a status: %w", err)
	}
	event := &metav1.WatchEvent{Type: string(watch.Error), Object: runtime.RawExtension{Raw: encoded}}
	body, err := event.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode an event: %w", err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), nil
}
