package mount

import (
	"errors"
	"testing"
)

// TestOptionsThatTheKernelRefuses: each of them is left out separately.
func TestOptionsThatTheKernelRefuses(t *testing.T) {
	errHuge, errNoswap, errNone := errors.New("no huge"), errors.New("no noswap"), errors.New("no tmpfs")
	for name, tc := range map[string]struct {
		huge, noswap, none bool // refused
		wantNoswap, want   error
	}{
		"none":          {},
		"huge":          {huge: true},
		"noswap":        {noswap: true, wantNoswap: errNoswap},
		"both":          {huge: true, noswap: true, wantNoswap: errNoswap},
		"no tmpfs ever": {none: true, wantNoswap: errNone, want: errNone},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Mounter{}
			withNoswap, err := m.tryOptions(func() error {
				switch {
				case tc.none:
					return errNone
				case tc.huge && m.hugeNever:
					return errHuge
				case tc.noswap && m.noswap:
					return errNoswap
				}
				return nil
			})
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil && (m.hugeNever == tc.huge || m.noswap == tc.noswap || !m.noswap && !errors.Is(withNoswap, tc.wantNoswap)) {
				t.Errorf("huge=never: %t, noswap: %t, %v", m.hugeNever, m.noswap, withNoswap)
			}
		})
	}
}
