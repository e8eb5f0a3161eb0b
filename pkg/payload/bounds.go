package payload

import "fmt"

// The bounds of one render. A pod's author can name one large object many times, so what counts is the work, not what is
// left of it: a key that a later source replaces counts too.
const (
	// MaxEnvBytes is how many bytes the names and values of the env files of a volume may have together, with
	// variableBytes for each, and the joined files. It is more than the kernel passes to a new process.
	MaxEnvBytes = 4 << 20

	variableBytes = 64
)

// TooLargeError says that a spec asks for more than a volume can show.
type TooLargeError struct{ text string }

// Error returns a text with the field, what the spec asks for, and the limit.
func (e *TooLargeError) Error() string { return e.text }

// check refuses what is beyond a limit, at the source that goes beyond it.
func (r *renderer) check(at string) error {
	switch {
	case r.opts.MaxFiles > 0 && len(r.files) > r.opts.MaxFiles:
		return &TooLargeError{fmt.Sprintf("%s: Too many: the volume may show %d keys, items and env files, each counted as often as it is named: one for each page of --max-volume-size", at, r.opts.MaxFiles)}
	case r.envBytes > MaxEnvBytes:
		return &TooLargeError{fmt.Sprintf("%s: Too long: the joined files of a volume and the names and values of its env files may take %d bytes together, with %d for each variable, counted as often as it is set", at, MaxEnvBytes, variableBytes)}
	}
	return nil
}
