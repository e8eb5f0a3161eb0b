package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf16"
)

// ErrFormat says that a plugin answers in a format that this release cannot read, perhaps because it is of another release.
var ErrFormat = errors.New("not a status that this release can read")

// maxReport limits the Report that is read, in bytes.
const maxReport = 256 << 20

// Fetch gets the Report of the plugin that serves at an address. If objects are given, the report may have only what concerns them, or
// everything: see Report.Volumes. transport is used for the request, and ctx limits the time. The error can
// be printed safely, as with Printable, but the report may hold characters that control a terminal. Fetch is safe for concurrent use if
// transport is.
func Fetch(ctx context.Context, transport http.RoundTripper, address string, objects ...ObjectKey) (*Report, error) {
	url := "http://" + address + Path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("get the status: %w", err)
	}
	request.URL.RawQuery = query(objects)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("get the status at %s: %w", url, err)
	}
	defer response.Body.Close()
	var report *Report
	if response.StatusCode == http.StatusOK {
		report, err = Read(response.Body)
	} else {
		err = refusal(response)
	}
	if err != nil {
		return nil, fmt.Errorf("get the status at %s: %w", url, err)
	}
	return report, nil
}

// refusal returns why an answer has no report.
func refusal(response *http.Response) error {
	const long = 512
	text, _ := io.ReadAll(io.LimitReader(response.Body, long)) // a part of the text is better than nothing
	err := fmt.Errorf("HTTP status %d: %s", response.StatusCode, Printable(strings.TrimSpace(string(text))))
	if response.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// Read reads a Report. If the format is another one, the error wraps ErrFormat.
func Read(from io.Reader) (*Report, error) {
	body, err := io.ReadAll(io.LimitReader(from, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("read the status: %w", err)
	}
	if len(body) > maxReport {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrFormat, maxReport)
	}
	report := &Report{}
	err = json.Unmarshal(body, report)
	_, otherForm := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case err != nil && !otherForm:
		return nil, fmt.Errorf("%w: no JSON: %s", ErrFormat, Printable(err.Error()))
	case report.APIVersion != APIVersion || report.Kind != Kind:
		return nil, fmt.Errorf("%w: apiVersion: Invalid value: %.64q, of kind %.64q: this release reads %s of kind %s: use the command of the plugin's own release",
			ErrFormat, report.APIVersion, report.Kind, APIVersion, Kind)
	case err == nil:
		err = report.resolve()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrFormat, Printable(err.Error()))
	}
	return report, nil
}

// Printable returns a text as one line. Each character that cannot be printed becomes a JSON escape, such as \u001b, because another
// plugin's text may hold characters that control a terminal.
func Printable(text string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(text, "\n", "; ") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
