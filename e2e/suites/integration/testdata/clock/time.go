package time

import "sync/atomic"

// shift points to the seconds that Now adds to the wall clock. It is nil until ShiftBy.
var shift atomic.Pointer[int64]

// ShiftBy has Now add these seconds to the wall clock. Their value may change at any time.
func ShiftBy(seconds *int64) { shift.Store(seconds) }

func shifted(sec int64) int64 {
	if by := shift.Load(); by != nil {
		return sec + atomic.LoadInt64(by)
	}
	return sec
}
