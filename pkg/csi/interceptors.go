package csi

import (
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/loglimit"
	"github.com/refvol/refvol/pkg/volume"
)

// Observer is called after each call, with the gRPC code, for metrics. It must not block and must be safe for concurrent use.
type Observer func(method, code string, took time.Duration)

// volumeRequest is a request about one volume.
type volumeRequest interface{ GetVolumeId() string }

// podRequest is a request that names a volume's pod.
type podRequest interface{ GetVolumeContext() map[string]string }

// targetOf returns the target path of a request about one volume, or "".
func targetOf(req any) string {
	switch r := req.(type) {
	case interface{ GetTargetPath() string }:
		return r.GetTargetPath()
	case interface{ GetVolumePath() string }:
		return r.GetVolumePath()
	}
	return ""
}

// podUID returns the UID of the pod that a target path names (.../pods/UID/volumes/DRIVER/NAME/mount), or "".
func podUID(target string) types.UID {
	parts := strings.Split(target, "/")
	if len(parts) < 5 {
		return ""
	}
	return types.UID(shorten(parts[len(parts)-5]))
}

// logCalls logs each failed call once, with its code, as an info message: the kubelet receives the error and logs it as one. The handler
// logs what a call has done, with a logger that names the method, the volume and, in a publish, the pod. Nothing else of a request is
// logged, because its context may hold tokens, and its secrets hold them. limit limits the lines of each pod. note is called with each
// answer.
func logCalls(base klog.Logger, limit *loglimit.Limiter, observe Observer, note func(req any, err error)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		method := path.Base(info.FullMethod)
		logger := base.WithValues("method", method)
		if r, ok := req.(volumeRequest); ok {
			logger = logger.WithValues("volumeID", shorten(r.GetVolumeId()))
		}
		pod := volume.Pod{UID: podUID(targetOf(req))}
		if r, ok := req.(podRequest); ok {
			if named, err := volume.PodFromContext(r.GetVolumeContext()); err == nil {
				pod.Namespace, pod.Name = shorten(named.Namespace), shorten(named.Name)
				logger = logger.WithValues("pod", klog.KRef(pod.Namespace, pod.Name))
			}
		}
		logger = limit.Logger(logger, pod)
		logger.V(4).Info("CSI call begins")
		begin := time.Now()
		resp, err := handler(klog.NewContext(ctx, logger), req)
		took, code := time.Since(begin), status.Code(err).String()
		observe(method, code, took)
		note(req, err)
		if err != nil {
			logger.Info("CSI call failed", "err", err, "code", code, "took", took)
		} else {
			logger.V(4).Info("CSI call done", "took", took)
		}
		return resp, err
	}
}

// maxLogged limits the bytes of an ID in the log. A request may hold megabytes.
const maxLogged = 128

// shorten shortens an ID for the log.
func shorten(id string) string {
	if len(id) <= maxLogged {
		return id
	}
	return fmt.Sprintf("%s... (%d bytes)", id[:maxLogged], len(id))
}

// recoverPanics turns a panic into an error of its call, so that other volumes continue to be updated. It does not log the panic's value,
// which could hold an object's value; the stack holds none. The code is not final, because after a final one the kubelet would destroy the
// volume of a running pod.
func recoverPanics(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			klog.FromContext(ctx).Error(nil, "CSI call panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
			resp, err = nil, status.Errorf(codes.Unavailable, "%s panicked; the plugin's log has the stack", path.Base(info.FullMethod))
		}
	}()
	return handler(ctx, req)
}
