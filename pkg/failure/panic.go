package failure

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"k8s.io/klog/v2"
)

// ErrPanicked reports a panic.
var ErrPanicked = errors.New("the plugin panicked; its log has the stack")

// LogPanic logs a panic. It leaves out the panic's value, which could hold an object's value. The stack holds none.
func LogPanic(ctx context.Context, cause any) {
	klog.FromContext(ctx).Error(nil, "Something panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
}
