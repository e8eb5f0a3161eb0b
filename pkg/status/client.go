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
)

// ErrFormat is that a plugin answers in a format that this release can't read, as one of another
// release may.
var ErrFormat = errors.New("not a status that this release can read")

// ErrBusy is that a plugin answers others, and may answer a moment later.
var ErrBusy = errors.New("the plugin is busy")

// Fetch gets the Report of the plugin that serves at an address, as far as query asks for it. transport
// is how it is reached. Of the report, and of the error, every text can be printed. ctx bounds the time.
// It is safe for concurrent use if transport is.
func Fetch(ctx context.Context, transport http.RoundTripper, address string, query Query) (*Report, error) {
	url := "http://" + address + Path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"?"+query.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("get the status: %w", err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("get the status at %s: %w", url, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get the status at %s: %w", url, refusal(response))
	}
	report, err := Read(response.Body)
	if err != nil {
		return nil, fmt.Errorf("get the status at %s: %w", url, err)
	}
	return report, nil
}

// refusal returns why an answer has no report.
func refusal(response *http.Response) error {
	const long = 512
	text, _ := io.ReadAll(io.LimitReader(response.Body, long)) // a part of it is better than nothing
	err := fmt.Errorf("HTTP status %d: %s", response.StatusCode, Printable(strings.TrimSpace(string(text))))
	switch response.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%w: %w", ErrFormat, err)
	case http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// Read reads a Report. It fails with ErrFormat if the format is another one. All texts of the report
// can be printed: what can't is replaced as Printable does.
func Read(from io.Reader) (*Report, error) {
	body, err := io.ReadAll(io.LimitReader(from, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("read the status: %w", err)
	}
	if len(body) > maxReport {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrFormat, maxReport)
	}
	var header struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(body, &header); err != nil {
		return nil, fmt.Errorf("%w: no JSON: %s", ErrFormat, Printable(err.Error()))
	}
	if header.APIVersion != APIVersion || header.Kind != Kind {
		return nil, fmt.Errorf("%w: apiVersion: Invalid value: %q, of kind %q: this release reads %s of kind %s: use the command of the plugin's own release",
			ErrFormat, cut(header.APIVersion), cut(header.Kind), APIVersion, Kind)
	}
	report := &Report{}
	if err := json.Unmarshal(body, report); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrFormat, Printable(err.Error()))
	}
	report.makePrintable()
	return report, nil
}

// cut shortens what an error repeats.
func cut(text string) string {
	const long = 64
	if len(text) > long {
		return text[:long] + "..."
	}
	return text
}

// Printable returns a text in which an escape such as \u001b stands for each character that is not
// printed as it is. Another plugin's text may hold what moves a terminal's cursor.
func Printable(text string) string {
	if !strings.ContainsFunc(text, isHidden) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !isHidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func isHidden(r rune) bool { return !unicode.IsPrint(r) }

// makePrintable applies Printable to each text.
func (r *Report) makePrintable() {
	texts := []*string{&r.Driver, &r.Node, &r.Version}
	for i := range r.MissingRights {
		texts = append(texts, &r.MissingRights[i])
	}
	for i := range r.Volumes {
		v := &r.Volumes[i]
		texts = append(texts, &v.VolumeID, &v.Name, &v.Pod.Namespace, &v.Pod.Name, &v.Pod.UID, &v.Condition, &v.Reason)
		for j := range v.Objects {
			o := &v.Objects[j]
			texts = append(texts, &o.Kind, &o.Namespace, &o.Name, &o.State, &o.Reason)
			if o.Shown != nil {
				texts = append(texts, &o.Shown.UID, &o.Shown.ResourceVersion)
			}
		}
	}
	for _, text := range texts {
		*text = Printable(*text)
	}
}
